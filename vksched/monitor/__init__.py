"""What a process tells of its schedulers while they run: to `vksched top`, and to metrics."""
