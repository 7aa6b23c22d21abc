"""Improvers: a schedule made better, step by step."""
