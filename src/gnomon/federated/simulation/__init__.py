"""A federation simulated on one machine, from its settings to its statement."""
