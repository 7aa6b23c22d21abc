"""The values a plan consists of."""
