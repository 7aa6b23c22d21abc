"""Tool calls: finds calls of tools, and reasoning, in the text of an answer."""
