"""The best plan that can be found, and a proof of how far from optimal it can be."""
