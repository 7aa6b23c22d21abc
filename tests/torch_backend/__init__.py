"""Tests of the backend of torch.compile; a package, because it has fixtures of its own."""
