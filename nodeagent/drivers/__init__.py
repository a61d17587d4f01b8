"""Drivers: one folder per vendor's way, one line each in ``registry``."""
