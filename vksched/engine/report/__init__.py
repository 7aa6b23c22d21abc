"""Reports of runs: the activity of each device, predicted times, and advice."""
