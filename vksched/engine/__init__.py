"""A graph made ready and kept running: devices, states, generations, runs."""
