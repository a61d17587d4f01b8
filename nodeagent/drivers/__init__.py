"""Drivers: a folder for each vendor, a line for each in ``registry``."""
