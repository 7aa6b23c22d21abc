"""Speculation: drafts of the next tokens, which one step of the model verifies."""
