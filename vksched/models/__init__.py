"""A model of several segments, with steps of the host between them."""
