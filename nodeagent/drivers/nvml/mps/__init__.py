"""NVIDIA's Multi-Process Service, by both protocols of its control program."""
