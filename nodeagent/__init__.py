"""The program on a GPU host: makes the portal's desired state real and reports what it observes."""

__version__ = "0.1.0"
