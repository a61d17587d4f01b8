"""Hygon DCU devices over hy-smi."""
