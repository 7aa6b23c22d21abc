"""The code of the child process, which uses only the standard library and jinja2."""
