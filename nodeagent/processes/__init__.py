"""Processes on the devices: whose they are, and what is done about those of nobody."""
