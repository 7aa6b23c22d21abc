"""Other runtimes on the cases of the bench, each in a process of its own.

Nothing here imports the rest of vksched: a worker may run in a Python that has only its baseline
and numpy, as a top-level package `baselines` (see `baseline_process.py` beside this folder).
Baselines in folders of a user become modules of it, too: `find_baselines.py`.
"""
