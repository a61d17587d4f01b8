"""How far people's estimates were off, in bins: the likelihood that turns an estimate into a distribution."""

from __future__ import annotations

import numpy as np

from scheduler.engine.columns import Floats
from scheduler.engine.learning.bins import BINS

IMAGINED = 20.0  # so many estimates with an error that halves every two bins are assumed before any is seen
_OFFSETS = np.arange(-BINS, BINS + 1)
_PRIOR: Floats = 2.0 ** (-np.abs(_OFFSETS) / 2)
_PRIOR /= _PRIOR.sum()


class EstimateErrors:
    """Counts of (bin of the estimate) - (bin of the duration) over ended requests."""

    def __init__(self) -> None:
        self.counts = np.zeros(2 * BINS + 1)

    def note(self, estimate_bin: int, duration_bin: int) -> None:
        """Remember one ended request."""
        self.counts[estimate_bin - duration_bin + BINS] += 1

    def likelihood(self, estimate_bin: int) -> Floats:
        """For each bin of the duration, how likely this estimate would have been."""
        known: Floats = (self.counts + IMAGINED * _PRIOR) / (self.counts.sum() + IMAGINED)
        return known[estimate_bin - np.arange(BINS) + BINS]
