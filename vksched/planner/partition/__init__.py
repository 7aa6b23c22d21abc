"""Partition: divide a placed graph into splits with transfers."""
