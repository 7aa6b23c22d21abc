"""Rules for sequences and optionals."""
