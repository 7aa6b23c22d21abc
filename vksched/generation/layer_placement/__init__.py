"""Layers of a language model over devices: what each takes, and where each lies."""
