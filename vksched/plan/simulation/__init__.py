"""Simulation: the times of the splits of a plan on a set of devices."""
