from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from portal.demo import organisation
from portal.demo.trace import mapping
from portal.demo.trace.mapping import FlavorOffer, Mapper, MappingError
from portal.demo.trace.rows import Pod, read_pods

SAMPLE = Path(__file__).resolve().parents[1] / "data" / "openb_sample.csv"
H100, A100, L40S = "h100-80gb", "a100-80gb", "l40s-48gb"
OFFERS = (
    FlavorOffer("h100-1g", H100, "mig", 125, 4),
    FlavorOffer("h100-3g", H100, "mig", 500, 4),
    FlavorOffer("h100", H100, "exclusive", 1000, 8),
    FlavorOffer("a100-2g", A100, "mig", 260, 4),
    FlavorOffer("a100", A100, "exclusive", 1000, 4),
    FlavorOffer("l40s-12gb", L40S, "memlimit", 250, 4),
    FlavorOffer("l40s-mps", L40S, "mps", 250, 4),
)
POD = Pod("pod-1", 1, 1000, (), "LS", 0, 600)


@pytest.fixture
def mapper() -> Mapper:
    return Mapper(OFFERS, speed=100)


@pytest.mark.parametrize(
    ("gpu_milli", "flavors"),
    [
        (1, {"h100-1g"}),
        (125, {"h100-1g"}),
        (126, {"l40s-12gb", "l40s-mps"}),
        (251, {"a100-2g"}),
        (470, {"h100-3g"}),
        (501, {"h100", "a100"}),
        (1000, {"h100", "a100"}),
    ],
)
def test_the_smallest_share_that_covers_a_row_is_asked_for(
    mapper: Mapper, gpu_milli: int, flavors: set[str]
) -> None:
    pod = replace(POD, gpu_milli=gpu_milli)

    assert {mapper.flavor(pod, position) for position in range(12)} == flavors


def test_a_whole_gpu_never_becomes_a_share(mapper: Mapper) -> None:
    shares_only = Mapper([o for o in OFFERS if o.mode != "exclusive"], speed=1)

    with pytest.raises(MappingError, match="no flavor covers 1 × 1000"):
        shares_only.flavor(POD, 0)


def test_eight_gpus_need_one_whole_node_of_the_model_that_has_it(mapper: Mapper) -> None:
    wish = mapper.wish(replace(POD, num_gpu=8), 5)

    assert (wish.flavor, wish.count) == ("h100", 8)
    assert wish.asker in mapping.LARGE_ASKERS


@pytest.mark.parametrize(
    ("specs", "gpu_milli", "flavor"),
    [
        (("V100M16", "V100M32"), 1000, "a100"),
        (("G3",), 1000, "h100"),
        (("G3",), 100, "h100-1g"),
        (("P100",), 100, "a100-2g"),
        (("unheard-of",), 100, "h100-1g"),
    ],
)
def test_a_wanted_model_becomes_a_demo_model(
    mapper: Mapper, specs: tuple[str, ...], gpu_milli: int, flavor: str
) -> None:
    assert mapper.flavor(replace(POD, gpu_specs=specs, gpu_milli=gpu_milli), 0) == flavor


def test_a_model_that_cannot_cover_the_row_gives_way_to_one_that_can(mapper: Mapper) -> None:
    pod = replace(POD, gpu_specs=("A10",), gpu_milli=1000)

    assert mapper.flavor(pod, 0) == "h100"


@pytest.mark.parametrize(("lived_s", "kept_s"), [(0, 2), (199, 2), (600, 6), (12_000, 120), (10**7, 120)])
def test_a_lease_is_kept_two_to_a_hundred_and_twenty_seconds(lived_s: int, kept_s: float) -> None:
    assert mapping.lifetime_s(replace(POD, deleted_s=lived_s), speed=100) == kept_s


def test_more_time_is_asked_for_than_the_lease_is_kept(mapper: Mapper) -> None:
    wish = mapper.wish(replace(POD, deleted_s=610), 0)

    assert wish.lifetime_s == 6.1
    assert wish.duration_s == 7 + mapping.MARGIN_S


def test_position_and_qos_choose_team_and_priority(mapper: Mapper) -> None:
    normal = [mapper.wish(POD, position) for position in range(8)]
    low = [mapper.wish(replace(POD, qos="BE"), position) for position in range(8)]

    assert {wish.priority for wish in normal} == {"normal"}
    assert {wish.priority for wish in low} == {"low"}
    assert len({wish.asker.team for wish in [*normal, *low]}) > 3


def test_high_priority_is_asked_for_by_a_team_admin_only() -> None:
    admins = {name for name, _shown, roles in organisation.PEOPLE if ("vision", "admin") in roles}

    for priority, askers in mapping.BY_QOS.values():
        assert priority != "high" or {asker.person for asker in askers} <= admins


def test_the_demo_organisation_can_hold_every_row_of_the_sample() -> None:
    ceilings = {team.slug: team.ceiling for team in organisation.TEAMS}
    weights = {board.board: board.weight for board in organisation.FLEET}
    models = {slug: board for slug, _name, _zh, board, *_rest in organisation.FLAVORS}
    pods = [pod for pod in read_pods(SAMPLE) if pod.num_gpu]

    wishes = [demo_mapper().wish(pod, position) for position, pod in enumerate(pods)]

    assert Counter(wish.count for wish in wishes).keys() >= {1, 2, 8}
    for wish in wishes:
        ceiling = ceilings[wish.asker.team]
        assert ceiling is not None
        assert weights[models[wish.flavor]] * wish.count <= ceiling


def demo_mapper() -> Mapper:
    """Offers as the demo's catalogue has them; a MIG slice's share by its compute slices is near enough."""
    offers = []
    for slug, _name, _zh, board, mode, profile, share, _memory, most in organisation.FLAVORS:
        whole = 1000 if mode == "exclusive" else share
        offers.append(FlavorOffer(slug, board, mode, whole or int(profile[0]) * 1000 // 7, most))
    return Mapper(offers, speed=1000)


def test_every_table_is_printed() -> None:
    text = mapping.tables()

    for name in (*mapping.BY_QOS, *mapping.BY_SPEC):
        assert name in text
