"""Rules for If, Loop and Scan."""
