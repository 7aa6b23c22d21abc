"""Values that no operand gives: constants, ranges, random numbers, states."""
