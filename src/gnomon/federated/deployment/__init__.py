"""A federation on several machines: Flower apps, sites, and what a site keeps on disk."""
