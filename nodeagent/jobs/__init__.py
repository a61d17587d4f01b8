"""Batch jobs in leases: one program per lease, started once, its output kept until the portal has it."""
