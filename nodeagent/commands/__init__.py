"""The agent's commands beside running: each module says its options and carries them out."""
