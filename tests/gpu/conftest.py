"""The contract with real cards.

Reading: ``pytest -m gpu tests/gpu``; with BERTH_GPU_FACTS=<file> what the card says is kept there.
Writing: ``pytest -m gpu_write tests/gpu --allow-gpu-writes``, as root, on a card that is idle and empty.
Both run on simulated cards in every test run.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gpu.cards import Card, NoCardError, real, simulated
from tests.gpu.guard import FLAG, NotAllowedError, require_writable


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        FLAG, action="store_true", default=False, help="let tests change a real GPU that is idle and empty"
    )


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder with a short name: MPS keeps sockets in it, whose paths have little room."""
    with tempfile.TemporaryDirectory(prefix="berth-") as folder:
        yield Path(folder)


def _card(kind: str, folder: Path) -> Card:
    if kind != "real":
        return simulated(folder, kind)
    try:
        return real(folder)
    except NoCardError as no:
        pytest.skip(f"no real GPU: {no}")


@pytest.fixture(params=["h100-80gb", "a30-24gb", "l40s-48gb", pytest.param("real", marks=pytest.mark.gpu)])
def card(request: pytest.FixtureRequest, short_path: Path) -> Iterator[Card]:
    """A card to read from."""
    found = _card(request.param, short_path)
    yield found
    found.driver.close()


@pytest.fixture(params=["h100-80gb", "a30-24gb", pytest.param("real", marks=pytest.mark.gpu_write)])
def writable(request: pytest.FixtureRequest, short_path: Path) -> Iterator[Card]:
    """A card that may be changed; afterwards it must be as it was."""
    is_real = request.param == "real"
    allowed = not is_real or bool(request.config.getoption(FLAG, default=False))
    if not allowed:
        pytest.skip(f"changes a real GPU: give {FLAG}")
    found = _card(request.param, short_path)
    try:
        require_writable(found, allowed=allowed)
    except NotAllowedError as no:
        pytest.fail(str(no))
    before = found.state()
    try:
        yield found
    finally:
        _put_back(found)
    assert found.state() == before
    found.driver.close()


def _put_back(card: Card) -> None:
    """Remove what a failed test left: only what it made itself, on a card that was empty before it."""
    card.driver.close()
    driver = card.driver = card.agent()
    for fact in driver.observe(card.uuid):
        driver.detach(fact.uuid, kill=True)
        driver.destroy(fact.uuid)
    if card.mig_modes and card.mig_modes != (0, 0):
        driver.set_mig_mode(card.uuid, False)
