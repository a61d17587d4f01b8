"""A pool of a Kubernetes cluster, by its API (docs/kubernetes.md)."""
