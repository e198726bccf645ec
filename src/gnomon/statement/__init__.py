"""The privacy statement: what is promised, in words and JSON, and the check that it fits its own numbers."""
