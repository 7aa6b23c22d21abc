"""Replay: rebuilds the plans and event orders of a tape, and reports the first difference."""
