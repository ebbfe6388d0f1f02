"""Uses an exported model: a Python client, batch recommendation, an HTTP server."""
