"""Projector files (mmproj): encoders of pictures for language models."""
