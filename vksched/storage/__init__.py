"""Storage: where the bytes of weights come from, and caches on disk."""
