"""Ops that move elements and compute nothing: layout, index, pad, scatter."""
