"""Monitoring of schedulers: snapshots for `vksched top`, and metrics."""
