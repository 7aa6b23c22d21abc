"""Rules for the com.microsoft domains."""
