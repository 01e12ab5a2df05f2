"""The service: plans over HTTP, solved once, kept for the whole cluster."""
