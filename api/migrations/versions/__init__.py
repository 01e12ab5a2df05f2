"""Steps of the schema, in the sequence that each one's ``down_revision`` gives."""
