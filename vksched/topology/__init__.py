"""What is known of devices, as plain data."""
