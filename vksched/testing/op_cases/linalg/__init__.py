"""Samples of products, attention and recurrent ops."""
