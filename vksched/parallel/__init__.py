"""Parallel execution: shard values over devices, and run microbatches through pipeline stages."""
