"""Hygon DCU cards over hy-smi."""
