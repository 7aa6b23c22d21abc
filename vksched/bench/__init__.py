"""Benchmarks: cases on every device and on baselines, in interleaved rounds; see `vksched
bench`.
"""
