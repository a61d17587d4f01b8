"""AMD Instinct devices over amd-smi."""
