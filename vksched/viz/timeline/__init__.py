"""View: timelines of plans and runs, as a page, a picture or a file for Perfetto. Knows no plan."""
