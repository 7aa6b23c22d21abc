"""The config of a scheduler: the devices of signals, how they are sharded, and the pipeline."""
