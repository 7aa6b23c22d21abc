"""Drawing: a plan as SVG or as text."""
