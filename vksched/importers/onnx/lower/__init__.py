"""A file's graph made into tensors, stage by stage."""
