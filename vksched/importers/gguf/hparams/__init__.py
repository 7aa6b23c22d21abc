"""Hyperparameters of GGUF models, read from their metadata."""
