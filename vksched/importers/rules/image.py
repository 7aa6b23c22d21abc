"""Rules for resampling."""
