"""Drawing plans for people."""
