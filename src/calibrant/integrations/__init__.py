"""Adapters for the training loops of Lightning and Hugging Face, imported on demand.

For any other loop, `calibrant.CalibrationPanel` is a torchmetrics metric with all metrics.
"""
