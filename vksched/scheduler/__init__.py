"""Scheduler: it opens devices and compiles graphs and models."""
