"""Driver: it runs a plan over several workers."""
