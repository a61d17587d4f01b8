"""What the agent relies on when it changes a card; every test leaves the card as it was (see conftest)."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeagent.drivers import errors
from nodeagent.drivers.base import Shape, Tenant
from nodeagent.drivers.errors import NvmlLikeError
from tests.gpu.cards import USER, Card, simulated
from tests.gpu.guard import NotAllowedError, require_writable


def needs(card: Card, mode: str) -> None:
    """Skip where this host cannot offer a mode, with its own sentence."""
    if mode not in card.fact.modes:
        pytest.skip(card.fact.refusals[mode])


def test_slices_are_made_at_exact_places_found_by_the_next_agent_and_removed(writable: Card) -> None:
    needs(writable, "mig")
    device, driver = writable.uuid, writable.driver
    assert driver.set_mig_mode(device, True) == 0

    for profile in writable.fact.profiles:
        for start in sorted({profile.starts[0], profile.starts[-1]}):
            made = driver.create(device, Shape("mig", profile.name), start, "contract.1.0")
            assert (made.profile, made.start, made.size) == (profile.name, start, profile.slices)
            assert made.uuid.startswith("MIG-")
            assert writable.agent().observe(device) == [made]
            assert len(driver.access(made.uuid).nodes) == 5
            with pytest.raises(NvmlLikeError, check=lambda no: no.code == errors.INSUFFICIENT_RESOURCES):
                driver.create(device, Shape("mig", profile.name), start, "other.1.0")
            driver.destroy(made.uuid)
            driver.destroy(made.uuid)
            assert driver.observe(device) == []

    assert driver.set_mig_mode(device, False) == 0


def test_the_same_place_has_the_same_name_each_time(writable: Card) -> None:
    needs(writable, "mig")
    device, driver = writable.uuid, writable.driver
    driver.set_mig_mode(device, True)
    smallest = min(writable.fact.profiles, key=lambda profile: profile.slices)

    names = set()
    for _ in range(2):
        made = driver.create(device, Shape("mig", smallest.name), smallest.starts[-1], "contract.1.0")
        names.add(made.uuid)
        driver.destroy(made.uuid)
    driver.set_mig_mode(device, False)

    # Not relied upon: a lease's slice is known by card, size and place. A change here is news for the reference.
    assert len(names) == 1


def test_an_mps_daemon_starts_with_its_limits_and_ends(writable: Card) -> None:
    needs(writable, "mps")
    driver = writable.driver

    made = driver.create(writable.uuid, Shape("mps", "", 0, 300, 2048), 0, "contract.1.0")
    driver.attach(made.uuid, Tenant("contract", user=USER))
    assert driver.mps.daemons() == [(writable.uuid, USER)]
    assert "CUDA_MPS_PIPE_DIRECTORY" in driver.access(made.uuid).env
    writable.agent().destroy(made.uuid)

    assert driver.mps.daemons() == []


def test_a_memory_limit_is_kept_and_cleared(writable: Card) -> None:
    needs(writable, "memlimit")
    driver = writable.driver
    try:
        cgroup = writable.cgroup()
    except OSError as no:
        pytest.skip(f"no cgroup can be made here: {no}")
    try:
        made = driver.create(writable.uuid, Shape("memlimit", "", 0, 300, 2048), 0, "contract.1.0")
        driver.confine(made.uuid, cgroup)
        driver.detach(made.uuid, kill=True)
        driver.destroy(made.uuid)
    finally:
        writable.drop_cgroup(cgroup)


# Refusing to write at all: proven everywhere


def test_nothing_is_written_without_being_asked_for(tmp_path: Path) -> None:
    with pytest.raises(NotAllowedError, match="--allow-gpu-writes"):
        require_writable(simulated(tmp_path), allowed=False)


def test_a_card_in_use_is_not_written_to(tmp_path: Path) -> None:
    card = simulated(tmp_path)
    assert card.host is not None
    pid = card.host.world.spawn("/user.slice", gpu=card.uuid).pid

    with pytest.raises(NotAllowedError, match=f"in use by {pid}"):
        require_writable(card, allowed=True)


def test_a_card_with_anything_on_it_is_not_written_to(tmp_path: Path) -> None:
    card = simulated(tmp_path)
    card.driver.create(card.uuid, Shape("exclusive"), 0, "somebody.1.0")

    with pytest.raises(NotAllowedError, match="stands on"):
        require_writable(card, allowed=True)


def test_a_card_in_another_mode_is_not_written_to(tmp_path: Path) -> None:
    card = simulated(tmp_path)
    card.driver.set_mig_mode(card.uuid, True)

    with pytest.raises(NotAllowedError, match="MIG is on"):
        require_writable(card, allowed=True)
    card.driver.set_mig_mode(card.uuid, False)
    require_writable(card, allowed=True)
    card.library.nvmlDeviceSetComputeMode(card.handle, 3)
    with pytest.raises(NotAllowedError, match="compute mode 3"):
        require_writable(card, allowed=True)
