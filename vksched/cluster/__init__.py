"""Clusters: connections from a scheduler to workers on other hosts."""
