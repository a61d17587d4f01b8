"""Where the units go. One file per policy, one line in ``policy.POLICIES``; copy ``best_fit`` for a new one.

A policy rates a placement on one node; it changes nothing. The index finds the node that costs least, so
a placement is found whenever one exists. MIG positions are look-ups of their own (``slices``).
"""
