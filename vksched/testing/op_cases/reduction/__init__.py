"""Samples of reductions, norms, scans and sorts."""
