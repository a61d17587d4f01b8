"""Desired against observed: what each lease is, what is done next on each device, and what the portal hears."""
