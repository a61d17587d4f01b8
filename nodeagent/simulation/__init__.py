"""Hosts that exist in memory only: for the demo, the tests and the soak. Nothing on a real host imports this."""
