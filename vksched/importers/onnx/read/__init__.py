"""Reading of ONNX files: bytes, tensors, shapes and local functions, with checks."""
