"""A Flower app: adapters of a language model, each node with the lines of one role."""
