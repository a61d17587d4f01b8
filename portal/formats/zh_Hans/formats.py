"""Simplified Chinese: Django writes 12846.00; bills in China, and the browser beside it, write 12,846.00."""

THOUSAND_SEPARATOR = ","
NUMBER_GROUPING = 3
