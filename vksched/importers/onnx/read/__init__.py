"""Files read and checked: bytes, tensors, shapes, local functions."""
