"""Timelines of plans and runs, as a page, a picture or a file for Perfetto. The package imports no
plan.
"""
