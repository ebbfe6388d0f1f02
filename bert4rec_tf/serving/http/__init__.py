"""The HTTP server: routes, request batching, model versions and the page."""
