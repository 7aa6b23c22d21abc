"""GGUF: language models as llama.cpp writes them. Needs the `gguf` extra."""
