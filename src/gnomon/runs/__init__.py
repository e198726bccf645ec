"""Runs from their settings: config, building, training, resuming, and the run folder."""
