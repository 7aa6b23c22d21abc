"""The config of a scheduler: where signals run, how they are cut, and in which order."""
