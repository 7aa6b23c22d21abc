"""Topology: devices, their links and their costs, as plain data."""
