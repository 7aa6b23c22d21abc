"""Wire: connections between hosts, their messages and codecs."""
