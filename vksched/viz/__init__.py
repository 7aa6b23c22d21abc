"""Pictures: SVG and timelines, for schedules and plans. The package imports neither of them."""
