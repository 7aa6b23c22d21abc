"""Executors: they run a plan on open devices."""
