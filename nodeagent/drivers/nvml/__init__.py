"""NVIDIA devices through NVML: whole, in MIG slices, and in shares by MPS, memory limits and time slices."""
