"""English: Django writes 2:05 p.m.; the browser beside it, and most who read it, a clock of 24 hours."""

TIME_FORMAT = "H:i"
DATETIME_FORMAT = "N j, Y, H:i"
SHORT_DATETIME_FORMAT = "m/d/Y H:i"
