"""The table of faults (fault_rules.json): XID codes and states of a device, how bad, what to do, and who said so.

Severities as the portal acts on them: info is only shown, warning may degrade one device, critical takes it out of
work until an operator puts it back. What a program does wrong is never critical: the device is not to blame.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, Final

from nodeagent.protocol.limits import ACTIONS, SEVERITIES
from nodeagent.protocol.messages import HealthFact

SCOPES: Final = ("slice", "device", "node")
WHO: Final = ("application", "hardware", "driver")
CLEARS: Final = ("agent", "restart", "reset", "operator")
UNKNOWN_XID: Final = "xid_unknown"
HARMLESS: Final = ("", "watch", "restart_workload")


class RulesError(ValueError):
    """The table of faults is wrong; the sentence names the rule and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Source:
    """Who says so: a title and its address."""

    name: str
    url: str


@dataclass(frozen=True, slots=True)
class FaultRule:
    """One fault. ``scope``: what it hits. ``who``: whose fault it mostly is. ``clears``: when the agent drops it.

    ``agent``: as soon as the state is fine, an event after ten quiet minutes. ``restart``: when the processes it hit
    have ended. ``reset``: when the device was reset. ``operator``: never by itself, only when a person says so.
    """

    code: str
    name: str
    severity: str
    action: str
    scope: str
    who: str
    clears: str
    source: Source


class FaultRules:
    """All rules by code; codes of XIDs are their numbers."""

    def __init__(self, rules: Mapping[str, FaultRule]) -> None:
        self._rules = dict(rules)

    def __iter__(self) -> Any:
        return iter(self._rules.values())

    def __len__(self) -> int:
        return len(self._rules)

    def of(self, code: str) -> FaultRule:
        """Return the rule of a state; raises KeyError for one that the table lacks."""
        return self._rules[code]

    def of_xid(self, xid: int) -> FaultRule:
        """Return the rule of an XID; one that the table lacks is a warning to watch, under its own number."""
        known = self._rules.get(str(xid))
        if known is not None:
            return known
        other = self._rules[UNKNOWN_XID]
        values = {field.name: getattr(other, field.name) for field in fields(FaultRule)}
        return FaultRule(**{**values, "code": str(xid)})

    def fact(self, device: str, xid: int, detail: str = "") -> HealthFact:
        """Return what an XID on a device means."""
        return told(self.of_xid(xid), device, detail)


def told(
    rule: FaultRule, device: str, detail: str = "", starts: Collection[int | None] | None = None
) -> HealthFact:
    """Return the fact that a rule makes of a device; ``detail`` follows its name.

    ``starts`` are the places of the slices where it happened, with None for one that is not known. They count only
    where the rule says that no more than a slice is hit: everything else concerns the whole device.
    """
    sentence = f"{rule.name} ({detail})" if detail else rule.name
    known = {start for start in starts or () if start is not None}
    is_narrow = rule.scope == "slice" and starts and None not in starts
    places = tuple(sorted(known)) if is_narrow else None
    return HealthFact(device, rule.code, rule.severity, sentence[:2000], rule.action, places)


def fact(device: str, xid: int) -> HealthFact:
    """Return what an XID on a device means, by the table that comes with the agent."""
    return standard().fact(device, xid)


@cache
def standard() -> FaultRules:
    """Return the table that comes with the agent."""
    return parse(Path(__file__).with_name("fault_rules.json").read_text(encoding="utf-8"))


def parse(text: str) -> FaultRules:
    """Return the rules of a table; raises RulesError for anything unknown, missing, doubled or contradictory."""
    try:
        table = json.loads(text)
    except ValueError as no:
        raise RulesError(f"the table of faults is no JSON: {no}") from no
    if not isinstance(table, dict) or set(table) != {"sources", "rules"}:
        raise RulesError('the table of faults must hold "sources" and "rules" and nothing else')
    sources = {key: _source(key, row) for key, row in table["sources"].items()}
    rules: dict[str, FaultRule] = {}
    for row in table["rules"]:
        rule = _rule(row, sources)
        if rule.code in rules:
            raise RulesError(f"rule {rule.code} is there twice; keep one")
        rules[rule.code] = rule
    if UNKNOWN_XID not in rules:
        raise RulesError(f"rule {UNKNOWN_XID} is missing; it answers for codes that are not in the table")
    return FaultRules(rules)


def _source(key: str, row: Any) -> Source:
    if not isinstance(row, dict) or set(row) != {"name", "url"}:
        raise RulesError(f"source {key} must have name and url")
    return Source(str(row["name"]), str(row["url"]))


def _rule(row: Any, sources: Mapping[str, Source]) -> FaultRule:
    names = {field.name for field in fields(FaultRule)}
    if not isinstance(row, dict) or set(row) != names or not all(isinstance(v, str) for v in row.values()):
        raise RulesError(f"rule {row!r} must have exactly the texts {', '.join(sorted(names))}")
    code = row["code"]
    for name, words in (
        ("severity", SEVERITIES),
        ("action", ACTIONS),
        ("scope", SCOPES),
        ("who", WHO),
        ("clears", CLEARS),
        ("source", tuple(sources)),
    ):
        if row[name] not in words:
            raise RulesError(f"rule {code}: {name} is {row[name]!r}; use one of {', '.join(words)}")
    if not code or not row["name"]:
        raise RulesError(f"rule {row!r} needs a code and a name")
    if row["who"] == "application" and (row["severity"] == "critical" or row["action"] not in HARMLESS):
        raise RulesError(f"rule {code}: a program's fault must not take a device out of work")
    return FaultRule(**{**row, "source": sources[row["source"]]})
