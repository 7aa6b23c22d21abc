"""The terminal view of running processes."""
