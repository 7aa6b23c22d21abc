"""Scheduler: opens devices, and compiles graphs and models for them."""
