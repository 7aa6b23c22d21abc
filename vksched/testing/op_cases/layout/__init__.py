"""Samples of ops that move elements."""
