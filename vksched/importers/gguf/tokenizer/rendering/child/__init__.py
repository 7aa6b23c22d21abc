"""What the child process runs: the standard library and jinja2, nothing of vksched beside it."""
