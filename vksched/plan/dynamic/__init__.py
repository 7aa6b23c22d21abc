"""Dynamic plans: plans that choose devices while they run."""
