"""Lowering: convert the graph of a file to tensors, segment by segment."""
