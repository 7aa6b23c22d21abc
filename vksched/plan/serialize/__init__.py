"""Documents: graphs and plans as plain data, as files of tapes hold them, and back."""
