"""GGUF files: language models with their vocabularies and weights."""
