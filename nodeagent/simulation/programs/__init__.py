"""Programs that a simulated host has: MPS, nvidia-smi, systemd."""
