"""Several computers as one: workers, which serve their devices, and how a scheduler comes to
them.
"""
