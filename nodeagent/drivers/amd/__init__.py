"""AMD Instinct cards over amd-smi."""
