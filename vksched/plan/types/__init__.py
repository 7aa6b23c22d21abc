"""The values of a plan."""
