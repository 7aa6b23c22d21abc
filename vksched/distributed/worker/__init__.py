"""Worker: it runs host plans for drivers."""
