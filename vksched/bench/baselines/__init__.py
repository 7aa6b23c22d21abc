"""Baselines: other runtimes on the cases of the benchmark, each in its own process.

Modules here do not import the rest of vksched: a worker may run in a Python that has only its
baseline and numpy, as a top-level package `baselines` (see `baseline_process.py`). Baselines in
folders of a user also become modules of it: `find_baselines.py`.
"""
