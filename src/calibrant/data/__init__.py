"""Data: sets, splits that are disjoint by construction, batches on a device."""
