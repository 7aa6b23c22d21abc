"""Conversations: from messages of a client to the tokens of a prompt."""
