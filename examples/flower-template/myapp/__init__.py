"""A Flower app to copy."""
