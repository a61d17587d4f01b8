from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from portal.advice.sizing import PricedSize, SizeVerdict, best_size, margin_mib, may_replace, need_of
from portal.catalog.models import Flavor
from portal.fleet.models import DeviceModel
from portal.telemetry.runs import SM, MeasuredRun
from tests.advice.labelled import labelled_habits, labelled_runs

H100 = DeviceModel(pk=1, slug="h100-80gb", vendor="nvidia", memory_mib=81_559)
L40S = DeviceModel(pk=2, slug="l40s", vendor="nvidia", memory_mib=46_068)
DCU = DeviceModel(pk=3, slug="dcu", vendor="hygon", memory_mib=65_520)


def size(
    pk: int, memory_mib: int, micro: int, speed: int | None, *, model: DeviceModel = H100, mode: str = "mig"
) -> PricedSize:
    flavor = Flavor(pk=pk, slug=f"f{pk}", name=f"f{pk}", device_model=model, mode=mode, memory_mib=memory_mib)
    return PricedSize(flavor, micro, speed)


WHOLE = size(1, 81_559, 8_000_000, 1000, mode="exclusive")
SIZES = (
    size(2, 9_984, 1_000_000, 142),
    size(3, 20_096, 2_000_000, 250),
    size(4, 40_448, 4_000_000, 429),
    size(5, 46_068, 3_000_000, 600, model=L40S, mode="exclusive"),
    size(6, 20_000, 500_000, 1000, mode="timeslice"),
    size(7, 65_520, 100_000, 1000, model=DCU, mode="exclusive"),
    size(8, 40_448, 900_000, None),
)
RUN = MeasuredRun(due_min=60, known_min=60, peak_mib=11_000, activity=0.1, signal=SM)


def advised(run: MeasuredRun, *, held: PricedSize = WHOLE) -> tuple[PricedSize, float | None] | None:
    need, why_not = need_of([run])
    if why_not is not None or need.activity is None:
        return None
    fitting = [one for one in SIZES if may_replace(one.flavor, held.flavor, need)]
    return best_size(held, fitting, need.activity, may_ask=lambda _flavor, _stretch: True)


def test_no_advice_would_run_out_of_memory_and_most_savings_are_found() -> None:
    """The figures of docs/advice.md, on the labelled set."""
    wrong: list[object] = []
    counted: Counter[str] = Counter()
    for one in labelled_runs(seed=54, each=20, held_mib=WHOLE.flavor.memory_mib):
        found = advised(one.run)
        can_tell = one.tells in ("sm", "util") and one.kind not in ("short", "forgotten")
        if found is None:
            # What a careful person would have told: half the price holds it with a quarter to spare, and it is calm.
            is_clear = can_tell and one.run.is_whole and one.needs_mib * 1.25 < 40_448
            counted["missed" if is_clear and one.run.activity < 0.2 else "silent"] += 1
            continue
        counted["advised"] += 1
        if found[0].flavor.memory_mib < one.needs_mib or not can_tell:
            wrong.append((one, found))

    assert not wrong
    assert counted["advised"] >= 100
    assert counted["missed"] == 0


def test_runs_of_the_same_work_tell_enough_although_minutes_of_some_are_lost() -> None:
    advised_runs = 0
    for runs, needs_mib in labelled_habits(seed=54, each=20, held_mib=WHOLE.flavor.memory_mib):
        need, why_not = need_of([one.run for one in runs], is_same_work=True)
        if why_not is None and need.activity is not None:
            fitting = [one for one in SIZES if may_replace(one.flavor, WHOLE.flavor, need)]
            found = best_size(WHOLE, fitting, need.activity, may_ask=lambda _flavor, _stretch: True)
            assert found is None or found[0].flavor.memory_mib >= needs_mib
            advised_runs += found is not None and not all(one.run.is_whole for one in runs)

    assert advised_runs >= 5


def test_the_cheapest_size_that_does_the_same_work_is_advised() -> None:
    found = advised(RUN)

    assert found is not None
    # A quarter of the speed for a tenth of the time: 0.9 + 0.1 / 0.25; the L40S costs more, even so.
    assert (found[0].flavor.pk, found[1]) == (3, pytest.approx(1.3))


def test_a_busy_run_is_not_sent_to_a_slice_that_takes_longer_than_it_saves() -> None:
    found = advised(replace(RUN, activity=0.75))

    assert found is not None
    assert (found[0].flavor.pk, found[1]) == (5, pytest.approx(1.5))
    # With that one gone only the size whose speed nobody told would do.
    assert advised(replace(RUN, activity=1.0)) == (SIZES[6], None)


@pytest.mark.parametrize(
    ("run", "why"),
    [
        (replace(RUN, due_min=14, known_min=14), SizeVerdict.TOO_SHORT),
        (replace(RUN, known_min=59), SizeVerdict.NOT_MEASURED),
        (replace(RUN, peak_mib=None), SizeVerdict.NOT_MEASURED),
        (replace(RUN, activity=None, signal=""), SizeVerdict.NOT_MEASURED),
        (replace(RUN, activity=0.02), SizeVerdict.UNUSED),
    ],
)
def test_what_is_not_known_gives_no_advice(run: MeasuredRun, why: SizeVerdict) -> None:
    assert need_of([run])[1] == why
    assert advised(run) is None


def test_earlier_runs_count_by_the_highest_peak_of_all_of_them() -> None:
    short = replace(RUN, due_min=3, known_min=3, peak_mib=30_000, activity=0.9)

    need, why_not = need_of([RUN, replace(RUN, due_min=180, known_min=180, activity=0.5), short])

    assert (need.runs, need.peak_mib, why_not) == (2, 30_000, None)
    assert need.activity == pytest.approx(0.4)
    lost = replace(RUN, known_min=50, peak_mib=20_000)
    assert need_of([RUN, replace(short, known_min=2)])[1] == SizeVerdict.NOT_MEASURED
    assert need_of([RUN, RUN, RUN, lost])[1] == SizeVerdict.NOT_MEASURED
    assert need_of([RUN, RUN, lost], is_same_work=True)[1] == SizeVerdict.NOT_MEASURED
    same, why_not = need_of([RUN, RUN, RUN, lost], is_same_work=True)
    assert (same.runs, same.peak_mib, why_not) == (3, 20_000, None)


def test_the_margin_is_a_tenth_and_at_least_one_gib() -> None:
    assert [margin_mib(peak) for peak in (100, 10_240, 11_001, 40_000)] == [1024, 1024, 1101, 4000]


def test_shared_hardware_and_other_vendors_replace_only_their_like() -> None:
    need = need_of([RUN])[0]
    shared = size(9, 30_000, 2_000_000, 1000, mode="timeslice")

    assert not may_replace(SIZES[4].flavor, WHOLE.flavor, need)
    assert not may_replace(SIZES[5].flavor, WHOLE.flavor, need)
    assert may_replace(SIZES[4].flavor, shared.flavor, need)
    assert may_replace(SIZES[1].flavor, shared.flavor, need)
