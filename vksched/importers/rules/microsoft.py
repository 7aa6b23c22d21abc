"""Rules for ops of the com.microsoft domain."""
