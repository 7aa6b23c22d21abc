"""Sharding: a graph whose values are cut over several devices, made of the graph as written."""
