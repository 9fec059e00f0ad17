"""A Flower app: handwritten digits, on nodes with very different amounts of data."""
