"""Whole devices and shares of them: memory limits and time slices."""
