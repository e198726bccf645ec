"""A federation on several machines: the Flower apps of server and sites, a site's folder, and its SuperNode."""
