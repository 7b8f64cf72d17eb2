"""calibrant: makes a neural network's confidence trustworthy, and proves it."""

__version__ = "0.1.0"
