"""Plans over several hosts: one plan per host, checked together."""
