"""Verification of a plan: memory, waits and barriers."""
