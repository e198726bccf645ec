"""Training runs from their settings: configuration, builders, training, resuming, and the run folder."""
