"""A fuzzer: random models, losses, records and neighbouring data sets, and the claims that must hold for each."""
