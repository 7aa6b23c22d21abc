"""Search: candidate plans, evaluated by simulation."""
