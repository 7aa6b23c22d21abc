"""Rendering of chat templates in a child process with memory and time limits."""
