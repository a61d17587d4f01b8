"""MIG: sizes, instances, and what stands on a device now."""
