"""Rules for attention and its parts."""
