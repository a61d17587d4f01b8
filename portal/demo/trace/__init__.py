"""A public trace played against a running portal by an outside client: HTTP and WebSocket only."""
