"""Pictures: SVG text and timelines, for schedules and plans. Knows neither of them."""
