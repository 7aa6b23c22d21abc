"""Chat templates are rendered in a child process with limits of memory and time."""
