"""Distributed execution: host plans, messages, and the processes that run them."""
