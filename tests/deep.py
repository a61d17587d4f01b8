"""Which tests are left to ``make deep``: what they prove, a cheaper one proves in part, and the rest is rare.

They are random walks and hostile input by the thousand, processes killed in the midst of work, traces played through
the engine, compiled code held against the plain one, and browsers that try one thing beside the journeys. ``make test``
is run at each commit, should take six minutes on two cores, and leaves them out; ``.ci/run`` runs both. Who names a
file runs all of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def deep_after(first: int, values: Iterable[Any]) -> Sequence[Any]:
    """Return values for ``parametrize``: the first ones as they are, all others for ``make deep``."""
    return [
        value if number < first else pytest.param(value, marks=pytest.mark.deep)
        for number, value in enumerate(values)
    ]
