"""The command line: a small client of the API. It imports no Django."""
