"""Back ends: clusters whose pools are lent as nodes of interchangeable units (docs/adr/0044-pools-of-a-cluster.md)."""
