"""Live terminal view of running processes: `vksched top`."""
