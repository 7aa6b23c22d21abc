"""Ops along an axis: reductions, norms, softmax, scans, sorting."""
