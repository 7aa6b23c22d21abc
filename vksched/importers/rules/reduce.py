"""Rules for reductions, softmax, searches along an axis."""
