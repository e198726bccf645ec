"""Figures: drawing only. matplotlib is loaded when a figure is drawn."""
