"""Rules for shapes and positions."""
