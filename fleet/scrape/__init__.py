"""Scraping of load and cache size from the endpoints' `/metrics`."""
