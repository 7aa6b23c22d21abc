"""Devices and executors: the only layer that uses hardware."""
