"""Rules for If, Loop, Scan and sequences."""
