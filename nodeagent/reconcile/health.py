"""What the devices say of their health, as last heard; silence is no good news."""

from __future__ import annotations

import logging
from typing import Final

from nodeagent.protocol.messages import HealthFact

log = logging.getLogger(__name__)

LOST: Final = ("79", "device_lost")  # NVIDIA's XID, and the word of other vendors' drivers
BLIND: Final = HealthFact(
    "", "health_unreadable", "warning", "the devices do not tell their health; what was read last is believed"
)


class DeviceHealth:
    """``facts`` are what is believed now, ``lost`` the devices that say of themselves that they are gone.

    ``crowded`` are those on which programs run that belong to no lease, as whoever looks at processes says.
    """

    def __init__(self) -> None:
        self.facts: tuple[HealthFact, ...] = ()
        self.lost: frozenset[str] = frozenset()
        self.crowded: frozenset[str] = frozenset()

    def take(self, facts: tuple[HealthFact, ...] | None) -> bool:
        """Believe what was read; says whether it is news. None: it could not be read, what was known stays."""
        if facts is None:
            facts = (*(fact for fact in self.facts if fact != BLIND), BLIND)
        if facts == self.facts:
            return False
        if BLIND in facts and BLIND not in self.facts:
            log.warning("the devices do not tell their health; what was known stays")
        self.facts = facts
        self.lost = frozenset(fact.device for fact in facts if fact.code in LOST)
        return True
