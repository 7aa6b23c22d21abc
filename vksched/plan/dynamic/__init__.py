"""Plans that decide while they run: what may go where, who decides, and what became of it."""
