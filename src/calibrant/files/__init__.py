"""Predictions to and from disk. Everything enters through the one border and leaves under a temporary name.

This package stands right of `functional` and left of `metrics` in the import order.
"""
