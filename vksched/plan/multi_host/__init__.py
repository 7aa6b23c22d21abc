"""Plans over several hosts: one plan per host, verified together."""
