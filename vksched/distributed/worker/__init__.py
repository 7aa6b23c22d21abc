"""Worker: runs host plans for drivers."""
