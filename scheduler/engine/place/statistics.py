"""What the requests look like: the figures that placement policies are fitted to.

Statistics come from a list of requests, as forms with their number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from scheduler.engine.columns import Flags
from scheduler.engine.demand import Form

TYPICAL_SHARE = 0.95


def typical(forms: Mapping[Form, int], share: float = TYPICAL_SHARE) -> list[tuple[Form, float]]:
    """The commonest forms that together make up ``share`` of all, with their shares summing to 1.

    Host memory is not looked at. Order as published (ATC 2023): number, then milli-CPU, thousandths,
    boards and models, all falling.
    """
    numbers: Counter[Form] = Counter()
    for form, number in forms.items():
        numbers[form._replace(memory=0)] += number
    everything = sum(numbers.values())
    ordered = sorted(
        numbers.items(), key=lambda i: (i[1], i[0].cpu, i[0].milli, i[0].boards, i[0].models), reverse=True
    )
    found, covered = [], 0
    for form, number in ordered:
        if covered >= share * everything:
            break
        found.append((form, number))
        covered += number
    return [(form, number / everything / (covered / everything)) for form, number in found]


def allowed(forms: Sequence[Form], models: Sequence[str]) -> Flags:
    """Which form may use which model: a flag per form and model."""
    wanted = [set(filter(None, form.models.split("|"))) for form in forms]
    return np.array([[not want or model in want for model in models] for want in wanted], np.bool_).reshape(
        len(forms), len(models)
    )


def quantile(pairs: Iterable[tuple[float, float]], share: float) -> float:
    """The value below which ``share`` of the weight of (value, weight) pairs lies; 0 without weight."""
    ordered = sorted(pair for pair in pairs if pair[1] > 0)
    rest = share * sum(weight for _, weight in ordered)
    for value, weight in ordered:
        rest -= weight
        if rest <= 1e-12:
            return value
    return ordered[-1][0] if ordered else 0.0
