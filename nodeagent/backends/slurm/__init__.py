"""A pool of a Slurm cluster, by Slurm's own commands (docs/slurm.md)."""
