"""Simulated devices, and devices that add faults or delays to real ones."""
