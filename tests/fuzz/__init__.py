"""Random models, losses, records and neighbours, and the claims that must hold for every one of them."""
