"""A running Berth, broken on purpose while it works, and proved right afterwards (docs/reliability.md)."""
