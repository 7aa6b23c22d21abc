"""Storage: model files, lazily read weights and caches on disk."""
