"""The CPU backend: numpy, its threads and native loops."""
