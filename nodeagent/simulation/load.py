"""How busy a simulated tenant keeps its slice: pure functions of time and seed, smooth and plausible."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from zlib import crc32

PATTERNS = ("steady", "bursty", "idle", "dummy_loop")


@dataclass(frozen=True, slots=True)
class Load:
    """Utilisation of the slice in percent and the part of its memory in use (0 to 1)."""

    util_percent: float
    memory_part: float


def load_at(pattern: str, seed: str, at_s: float) -> Load:
    """Return the load of one tenant at one instant; an unknown pattern is steady work."""
    return _SHAPES.get(pattern, _steady)(crc32(seed.encode()), at_s)


def _steady(key: int, at_s: float) -> Load:
    """Training: busy, with a dip now and then when a checkpoint is written."""
    util = 86 + 8 * _wave(key, at_s / 7) + 3 * _wave(key + 1, at_s / 1.7)
    dip = max(0.0, _wave(key + 2, at_s / 23) - 0.8) * 180
    return Load(_clamp(util - dip), 0.72 + 0.02 * _wave(key + 3, at_s / 60))


def _bursty(key: int, at_s: float) -> Load:
    """Notebook or inference: short bursts over near silence."""
    level = 1 / (1 + math.exp(-9 * (_wave(key, at_s / 11) - 0.05)))
    util = 3 + 82 * level + 6 * _wave(key + 1, at_s / 1.3)
    return Load(_clamp(util), 0.35 + 0.2 * level)


def _idle(key: int, at_s: float) -> Load:
    """Held and forgotten: a context, no work."""
    return Load(_clamp(0.6 * _wave(key, at_s / 19)), 0.03)


def _dummy_loop(key: int, at_s: float) -> Load:
    """A loop that only looks busy: full, flat, and almost no memory."""
    return Load(_clamp(99.4 + 0.5 * _wave(key, at_s / 5)), 0.012)


_SHAPES: dict[str, Callable[[int, float], Load]] = {
    "steady": _steady,
    "bursty": _bursty,
    "idle": _idle,
    "dummy_loop": _dummy_loop,
}


def _wave(key: int, at: float) -> float:
    """Smooth noise between -1 and 1: hashed values at whole numbers, eased in between."""
    whole = math.floor(at)
    part = at - whole
    part = part * part * (3 - 2 * part)
    left, right = _hashed(key, whole), _hashed(key, whole + 1)
    return left + (right - left) * part


def _hashed(key: int, step: int) -> float:
    mixed = (key * 0x9E3779B1 + step * 0x85EBCA77) & 0xFFFFFFFF
    mixed = ((mixed ^ (mixed >> 15)) * 0xC2B2AE3D) & 0xFFFFFFFF
    mixed ^= mixed >> 13
    return mixed / 0x7FFFFFFF - 1


def _clamp(percent: float) -> float:
    return round(min(100.0, max(0.0, percent)), 1)
