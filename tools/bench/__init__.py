"""Measurements of a running Berth, from outside: ``make bench`` or ``make bench ARGS="latency throughput"``."""
