"""Cambricon MLU cards over cnmon and the CNDEV library."""
