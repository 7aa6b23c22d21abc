"""The tuner: which variant of a kernel is the fastest for a call on a device, by measuring them.

calls of a graph, or a typical set (calls.py) -> every variant on the device (bench.py)
-> the fastest (search.py) -> kept on disk (store.py) -> Limits.tuned of the next plans (tuner.py)
"""
