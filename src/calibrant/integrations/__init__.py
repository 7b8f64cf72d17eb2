"""Thin adapters to other people's training loops, imported on demand: `lightning` and `transformers`.

The panel of metrics for any loop is a torchmetrics metric, `calibrant.CalibrationPanel`.
"""
