"""Run a federation from its settings, with its run folder, its statement and its entries in the ledger."""
