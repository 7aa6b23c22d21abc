"""Rules for elementwise arithmetic, comparisons and activations."""
