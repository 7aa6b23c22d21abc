"""ONNX files: read, taken apart, lowered to tensors by the rules."""
