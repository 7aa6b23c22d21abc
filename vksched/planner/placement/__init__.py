"""Placement: choose the device of each node."""
