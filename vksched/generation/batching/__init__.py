"""Continuous batching: an inference engine that serves many requests over one KV cache."""
