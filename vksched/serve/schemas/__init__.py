"""The schemas of requests. Values are strict: "3" is no number."""
