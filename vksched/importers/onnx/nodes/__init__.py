"""Nodes and values of a file's graph, as the rules see them."""
