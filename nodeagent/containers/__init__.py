"""Containers of batch jobs: Podman inside a lease."""
