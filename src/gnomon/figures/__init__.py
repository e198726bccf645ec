"""Figures of runs, comparisons, diagnostics and audits. matplotlib is imported only by the modules in this package."""
