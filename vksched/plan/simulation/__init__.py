"""Simulation: when each part of a plan runs on given devices."""
