"""Rules for quantised models."""
