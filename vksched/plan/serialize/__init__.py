"""Serialization: graphs and plans as plain data, as trace files hold them, and back."""
