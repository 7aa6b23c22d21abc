"""Executors: run plans on open devices."""
