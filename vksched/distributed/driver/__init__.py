"""Driver: runs a plan over several workers."""
