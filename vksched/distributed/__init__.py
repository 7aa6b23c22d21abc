"""Plans over several computers: parts, messages, and the processes that carry them out."""
