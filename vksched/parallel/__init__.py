"""One computation on several devices: in which order microbatches go through stages."""
