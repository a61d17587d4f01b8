"""A simulated host below its libraries: devices, processes, files of /proc, and what can happen to them."""
