"""Simulated devices, and wrappers that add faults or delays to real devices."""
