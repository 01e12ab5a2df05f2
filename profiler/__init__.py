"""The agent that measures a model on the nodes that will train it."""
