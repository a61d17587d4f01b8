"""This host without its accelerators: accounts, files, programs, and what its holders are told."""
