"""The report of a run: what each device did, what was predicted, what would make it faster."""
