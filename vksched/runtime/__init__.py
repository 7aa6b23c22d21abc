"""Devices and the executor: the only layer that touches hardware."""
