"""Rules for gathering and scattering."""
