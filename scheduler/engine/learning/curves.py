"""Distribution of a duration -> what a request of a given age is worth: the Gittins index.

In seconds, low is better. Gittins, Multi-armed Bandit Allocation Indices (1989); for
queues of unknown sizes see Scully, Harchol-Balter and Scheller-Wolf, SOAP (2018).
"""

from __future__ import annotations

import numpy as np

from scheduler.engine.columns import Floats
from scheduler.engine.learning.bins import BINS, HIGH, LOW, MIDDLE

NOTHING = 1e-300  # less probability than this says nothing: the end of the bin is taken
_FROM_HERE = np.triu(np.ones((BINS, BINS)))


def gittins(p: Floats) -> Floats:
    """Least (expected seconds spent) / (chance to end) over all bins to stop at, at the start of each bin."""
    rows = _FROM_HERE * p
    ends = np.cumsum(rows, axis=1)
    beyond = np.append(np.cumsum(p[::-1])[::-1][1:], 0.0)
    work = np.cumsum(rows * (MIDDLE - LOW[:, None]), axis=1) + (HIGH - LOW[:, None]) * beyond
    ratio = np.where(ends > 0, work / np.where(ends > 0, ends, 1.0), np.inf)
    found = np.where(_FROM_HERE > 0, ratio, np.inf).min(axis=1)
    return np.where(_FROM_HERE @ p < NOTHING, HIGH, found)


def mean_remaining(p: Floats) -> Floats:
    """Expected seconds still to run at the start of each bin, given that it was reached."""
    mass = _FROM_HERE @ p
    work = _FROM_HERE @ (p * MIDDLE) - LOW * mass
    return np.where(mass < NOTHING, HIGH, work / np.maximum(mass, NOTHING))
