"""How fast the server is, with many clients."""
