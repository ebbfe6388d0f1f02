"""The HTTP server: its addresses, request batching, versions and page."""
