"""English: Django writes Nov. 22, 2026, 2:05 p.m.; the browser beside it, and most who read it, 22 Nov and 14:05."""

TIME_FORMAT = "H:i"
DATE_FORMAT = "j M Y"
MONTH_DAY_FORMAT = "j F"
DATETIME_FORMAT = "j M Y, H:i"
MOMENT_FORMAT = "j M, H:i"  # of this year
SHORT_DATETIME_FORMAT = "j M Y, H:i"
