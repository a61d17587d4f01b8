"""When a card may be changed by tests: asked for by name, and only one that nobody uses."""

from __future__ import annotations

from tests.gpu.cards import Card

FLAG = "--allow-gpu-writes"


class NotAllowedError(Exception):
    """The card must not be changed; the sentence says why."""


def require_writable(card: Card, *, allowed: bool) -> None:
    """Raise NotAllowedError unless changing is asked for and the card is idle and empty."""
    if not allowed:
        raise NotAllowedError(f"these tests change a card; give {FLAG} to let them")
    if found := card.driver.processes(card.uuid):
        pids = ", ".join(str(process.pid) for process in found[:5])
        raise NotAllowedError(f"{card.uuid} is in use by {pids}; tests change idle cards only")
    if standing := card.driver.observe(card.uuid):
        raise NotAllowedError(f"{standing[0].uuid} stands on {card.uuid}; tests change empty cards only")
    modes = card.mig_modes
    if modes and modes != (0, 0):
        raise NotAllowedError(f"MIG is on (or about to be) on {card.uuid}; switch it off first")
    if (mode := card.library.nvmlDeviceGetComputeMode(card.handle)) != 0:
        raise NotAllowedError(
            f"{card.uuid} has compute mode {mode}; tests change cards in the default mode only"
        )
