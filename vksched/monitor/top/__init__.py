"""A live view of running processes in a terminal: `vksched top`."""
