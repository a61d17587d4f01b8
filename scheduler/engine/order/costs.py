"""What a claim takes of a quota before its place is known."""

from __future__ import annotations

from collections.abc import Iterable

from scheduler.engine.board import weighted
from scheduler.engine.model import Claim, Snapshot
from scheduler.engine.pools import capacity_of


class Costs:
    """Weighted thousandths of claims and of the fleet.

    A claim of several models counts as on the lightest of them, as the quota does when it looks ahead; a slice as
    the largest that a device of its model makes of it.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        prices = _prices_of(snapshot)
        self._weights, self._parts, self._known = prices.weights, prices.parts, prices.known
        self._lightest = min(self._weights.values(), default=1000)
        self.capacity = prices.capacity

    def of(self, claim: Claim) -> int:
        """Weighted thousandths of all units of the claim together."""
        key = (claim.models, claim.profile, claim.share_milli, claim.count, claim.nodes)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = units_of(claim) * self._unit(claim)
        return found

    def _unit(self, claim: Claim) -> int:
        models: Iterable[str] = claim.models or self._weights
        units = [
            weighted(self._parts.get((model, claim.profile), claim.share_milli), self._weights[model])
            for model in models
            if model in self._weights
        ]
        return min(units, default=weighted(claim.share_milli, self._lightest))


class _Prices:
    """What units cost on a fleet, as far as it was asked."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.devices, self.nodes, self.outages = snapshot.devices, snapshot.nodes, snapshot.outages
        self.weights: dict[str, int] = {}
        self.parts: dict[tuple[str, str], int] = {}
        self.known: dict[tuple[object, ...], int] = {}
        self.capacity = capacity_of(snapshot)
        for device in snapshot.devices:
            weight = self.weights.get(device.model, device.weight_milli)
            self.weights[device.model] = min(weight, device.weight_milli)
            for profile in device.profiles:
                part = device.model, profile.name
                self.parts[part] = max(self.parts.get(part, 0), profile.share_milli)


_last: list[_Prices] = []


def _prices_of(snapshot: Snapshot) -> _Prices:
    """The prices of a fleet; those of the last one are kept as long as it stays the same."""
    known = _last[0] if _last else None
    is_same = (
        known is not None
        and known.devices is snapshot.devices
        and known.nodes is snapshot.nodes
        and not known.outages
        and not snapshot.outages
    )
    if known is None or not is_same:
        known = _Prices(snapshot)
        _last[:] = [known]
    return known


def units_of(claim: Claim) -> int:
    """How many units the claim wants on all its nodes together."""
    return claim.count * max(claim.nodes, 1)
