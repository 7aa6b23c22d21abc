"""A model of several stages, with steps of the host between them."""
