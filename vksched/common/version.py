"""The version of vksched, and the time at which this process loads it."""

import time

__version__ = "0.1.0"
LOADED_NS = time.time_ns()
"""The time at which this process began to load the package: this module is one of the first."""
