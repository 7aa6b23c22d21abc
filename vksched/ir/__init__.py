"""Intermediate representation: tensors, graphs, op declarations and their attributes."""
