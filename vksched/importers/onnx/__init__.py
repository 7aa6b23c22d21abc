"""ONNX importer: read a file, check it, and lower its graph to tensors with one rule per op."""
