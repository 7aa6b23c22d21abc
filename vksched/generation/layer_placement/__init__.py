"""Layer placement: costs of a language model's layers, and their devices."""
