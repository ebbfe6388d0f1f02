"""An exported model at work: a client, batch recommendation, an HTTP server."""
