"""Replay: makes the plans and orders of a tape again, and tells the first difference."""
