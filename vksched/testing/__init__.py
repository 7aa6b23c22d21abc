"""The case table: what every op must do, on every device. `table.py` collects the families."""
