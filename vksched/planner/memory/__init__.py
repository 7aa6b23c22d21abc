"""Memory planning: offsets, staging buffers, streamed weights."""
