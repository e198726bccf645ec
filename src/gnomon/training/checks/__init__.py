"""Checks before training: of the model, of the clip rule, and of the independence of samples."""
