"""Nodes and values of an ONNX graph, as rules see them."""
