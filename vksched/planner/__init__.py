"""The planner: placement, splits, memory, barriers, and the search for the best plan."""
