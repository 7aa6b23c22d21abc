"""Partition: the placed graph as splits with transfers."""
