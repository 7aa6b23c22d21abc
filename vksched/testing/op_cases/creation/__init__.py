"""Samples of ops that create values."""
