"""Cambricon MLU devices over cnmon and the CNDEV library."""
