"""Text generation with language models."""
