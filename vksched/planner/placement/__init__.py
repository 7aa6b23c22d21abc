"""Placement: the device of each node."""
