"""Autotuning and calibration: measure kernel variants and costs, and cache the results.

calls of a graph, or a typical set (tunable_calls.py) -> every variant (kernel_benchmark.py)
-> the fastest (search.py) -> cached on disk (variant_cache.py) -> Limits.tuned (autotuner.py)
"""
