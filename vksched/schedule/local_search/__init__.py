"""Local search: improvement of a schedule in small steps."""
