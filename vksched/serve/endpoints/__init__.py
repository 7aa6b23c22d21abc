"""The endpoints: each reads a request, validates it, and answers it."""
