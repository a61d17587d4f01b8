"""Figures of devices and their partitions, once a second."""
