"""Wire protocol: connections between hosts, their messages and codecs."""
