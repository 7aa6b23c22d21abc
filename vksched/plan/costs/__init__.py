"""Costs: seconds and bytes of nodes and transfers."""
