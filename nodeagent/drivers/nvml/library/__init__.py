"""The NVML library: its calls, handles, values and lists of processes."""
