"""When a card may be changed by tests: asked for by name, by root, and only one that nobody uses."""

from __future__ import annotations

from nodeagent.drivers.errors import NvmlLikeError
from tests.gpu.cards import Card

FLAG = "--allow-gpu-writes"


class NotAllowedError(Exception):
    """The card must not be changed; the sentence says why."""


def require_writable(card: Card, *, allowed: bool) -> None:
    """Raise NotAllowedError unless changing is asked for and allowed, and the card is idle and empty."""
    if not allowed:
        raise NotAllowedError(f"these tests change a card; give {FLAG} to let them")
    if not card.is_root:
        raise NotAllowedError(
            "MIG, MPS modes and memory limits are root's to change; run these tests as root"
        )
    modes = card.mig_modes
    if modes and modes != (0, 0):
        raise NotAllowedError(f"MIG is on (or about to be) on {card.uuid}; switch it off first")
    try:
        found = card.driver.processes(card.uuid)
    except NvmlLikeError as no:
        raise NotAllowedError(f"whether {card.uuid} is in use cannot be told: {no}") from no
    if found:
        pids = ", ".join(str(process.pid) for process in found[:5])
        raise NotAllowedError(f"{card.uuid} is in use by {pids}; tests change idle cards only")
    if standing := card.driver.observe(card.uuid):
        raise NotAllowedError(f"{standing[0].uuid} stands on {card.uuid}; tests change empty cards only")
    if (mode := card.answer("nvmlDeviceGetComputeMode", card.handle)) != 0:
        raise NotAllowedError(
            f"{card.uuid} has compute mode {mode}; tests change cards in the default mode only"
        )
