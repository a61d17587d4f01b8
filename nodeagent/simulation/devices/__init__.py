"""The driver without hardware: NVML's rules and refusals, seeded load, and faults on demand, for any vendor."""
