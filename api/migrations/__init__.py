"""Migrations: what changed in the schema, one step a module in ``versions``; ``api.schema`` runs them."""
