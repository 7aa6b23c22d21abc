"""Explanations of a plan, as text and as plain data."""
