"""Simplified Chinese: Django writes 12846.00; bills in China, and the browser beside it, write 12,846.00."""

DATETIME_FORMAT = "Y年n月j日 H:i"
MOMENT_FORMAT = "n月j日 H:i"  # of this year
THOUSAND_SEPARATOR = ","
NUMBER_GROUPING = 3
