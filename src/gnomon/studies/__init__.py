"""Grids of seeded runs: comparisons of methods, and reproductions of published tables and figures."""
