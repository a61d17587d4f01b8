"""NVIDIA cards through NVML: read-only in this version, whole devices can be leased."""
