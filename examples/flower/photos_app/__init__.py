"""A small Flower app that learns to tell photographs apart."""
