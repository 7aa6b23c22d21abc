"""A plan told to people: text, pictures, data."""
