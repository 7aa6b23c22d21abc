"""Sharding: rewrite a graph so that its values are sharded over several devices."""
