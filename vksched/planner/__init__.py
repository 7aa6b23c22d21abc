"""The stages that make a plan: placement, splits, memory, barriers."""
