"""Basics for every package: errors, element types, environment variables, formatting."""
