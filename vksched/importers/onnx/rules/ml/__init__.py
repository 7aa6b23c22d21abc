"""Rules for the ai.onnx.ml domain."""
