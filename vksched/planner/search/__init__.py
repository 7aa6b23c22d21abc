"""Search: generate candidate plans and evaluate them by simulation."""
