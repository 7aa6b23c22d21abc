"""Several computers as one: nodes, which serve their devices, and how a scheduler comes to them."""
