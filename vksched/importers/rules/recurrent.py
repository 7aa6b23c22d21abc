"""Rules for recurrent layers."""
