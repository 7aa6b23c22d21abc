"""Comparison of outputs with a reference runtime."""
