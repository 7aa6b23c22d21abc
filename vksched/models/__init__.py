"""Compiled models of several graph segments, with CPU steps between them."""
