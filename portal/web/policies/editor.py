"""The policy form: what people type, kept as typed; the engine's reader says what is wrong with it and where.

Names of fields are the dotted names of the body, so that a fault lands at its field.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from django.http import QueryDict
from django.utils.translation import gettext as _

from portal.fleet.models import DeviceModel
from portal.policies.faults import DAY_NAMES, sentence
from portal.policies.first_policy import FIRST_RULES
from portal.policies.rules import (
    BACKFILL_TEXTS,
    GROUPS,
    OFFERED,
    ORDER_TEXTS,
    PLACE_TEXTS,
    RULES,
    WORK_NAMES,
    Group,
    PolicyRule,
    in_words,
    length,
    value_at,
)
from portal.web.figures import duration_text, parse_duration
from scheduler.engine.policy import WORKS
from scheduler.engine.policy_body import MOST_TIMES, BadPolicy, Fault, body_of

MOST_TEXT = 200
MOST_FACTORS = 50
WHOLE = frozenset({"depth", "preempting.most_evictions"})
TEXTS: dict[str, dict[str, tuple[Any, Any]]] = {
    "order": ORDER_TEXTS,
    "place": PLACE_TEXTS,
    "backfill": BACKFILL_TEXTS,
}
RECOMMENDED = body_of(FIRST_RULES)
ROW_KINDS = ("pool_times", "sleep_times", "factors")


@dataclass(frozen=True, slots=True)
class StrategyChoice:
    """One strategy that can be chosen, and whether a new installation has it."""

    value: str
    title: Any
    text: Any
    is_recommended: bool


@dataclass(slots=True)
class FieldControl:
    """One field as it is drawn. ``kind`` is radio, select, text, number or check.

    ``choices`` of a select are (value, text), ``strategies`` those of a radio; ``default`` is what a new
    installation has, in words.
    """

    name: str
    kind: str
    label: Any
    value: str = ""
    help: Any = ""
    unit: Any = ""
    choices: list[tuple[str, str]] = field(default_factory=list)
    strategies: list[StrategyChoice] = field(default_factory=list)
    default: str = ""
    is_checked: bool = False
    errors: list[str] = field(default_factory=list)

    @property
    def id(self) -> str:
        """The element's id: a name without dots and brackets."""
        return "id_" + "".join(c if c.isalnum() else "-" for c in self.name)


@dataclass(slots=True)
class PolicyTimeRow:
    """One row of a list of times or of factors: its days, its fields, and what removes it."""

    number: int
    drop: str
    days: list[FieldControl]
    fields: list[FieldControl]
    parts: list[FieldControl]
    errors: list[str]


@dataclass(slots=True)
class RuleControl:
    """One rule as it is drawn: a single field, parts side by side, or rows that can be added."""

    rule: PolicyRule
    control: FieldControl | None = None
    parts: list[FieldControl] = field(default_factory=list)
    rows: list[PolicyTimeRow] = field(default_factory=list)
    is_list: bool = False
    errors: list[str] = field(default_factory=list)

    @property
    def has_errors(self) -> bool:
        """Whether something in it cannot be used."""
        fields = [*([self.control] if self.control else []), *self.parts]
        for row in self.rows:
            fields += [*row.days, *row.fields, *row.parts]
        return bool(self.errors) or any(row.errors for row in self.rows) or any(one.errors for one in fields)


@dataclass(slots=True)
class RuleSection:
    """A group of rules as it is drawn: the plain choices, and the rest, folded unless it ``is_open``.

    ``changed`` counts what of the rest differs from what a new installation has; ``said`` tells a group without
    plain choices in a few words.
    """

    group: Group
    plain: list[RuleControl]
    more: list[RuleControl]
    is_open: bool
    changed: int
    said: str


class PolicyDraft:
    """A body as a form has it, faults included: values that are no numbers stay the text they are."""

    def __init__(self, body: Mapping[str, Any], faults: Iterable[Fault] = (), touched: str = "") -> None:
        self.body = body
        self.faults = list(faults)
        self._touched = touched

    @classmethod
    def typed(cls, data: QueryDict) -> PolicyDraft:
        """Return what was typed into the form; ``do=add:…`` and ``do=drop:…`` change its rows."""
        body: dict[str, Any] = {}
        for rule in RULES:
            _put(body, rule.key, _typed(data, rule))
        what, _colon, where = data.get("do", "").partition(":")
        key, _colon, number = where.partition(":")
        rule_kinds = {rule.key: rule.kind for rule in RULES if rule.kind in ROW_KINDS}
        if what == "add" and key in rule_kinds:
            _add(body, key, rule_kinds[key])
        elif what == "drop" and key in rule_kinds and number.isascii() and number.isdecimal():
            _drop(body, key, int(number[:6]))
        return cls(body, touched=key)

    def refused(self, error: BadPolicy) -> PolicyDraft:
        """Return the draft with its faults."""
        return PolicyDraft(self.body, error.faults)

    def whole(self) -> dict[str, Any]:
        """Return the body as the engine reads it: factors as an object, a time without parts with none."""
        factors = {model: factor for model, factor in self.body["memory_factors"] if model}
        return {**self.body, "memory_factors": factors}

    @property
    def general_errors(self) -> list[str]:
        """Faults that belong to no field of the form."""
        shown = {control.name for control in self._controls()} | {rule.key for rule in RULES}
        return [
            f"{fault.field}: {sentence(fault)}"
            for fault in self.faults
            if fault.field not in shown and not self._is_in_a_row(fault.field)
        ]

    def sections(self) -> list[RuleSection]:
        """Return all rules as they are drawn, group by group."""
        return [self._section(group) for group in GROUPS]

    def _section(self, group: Group) -> RuleSection:
        rules = [rule for rule in RULES if rule.group == group.name]
        plain = [self._drawn(rule) for rule in rules if rule.is_plain]
        more = [self._drawn(rule) for rule in rules if not rule.is_plain]
        whole = self.whole()
        return RuleSection(
            group, plain, more,
            is_open=any(one.has_errors or one.rule.key == self._touched for one in more),
            changed=sum(value_at(whole, one.rule.key) != value_at(RECOMMENDED, one.rule.key) for one in more),
            said="" if plain or more[0].has_errors else _in_short(more[0].rule, value_at(whole, more[0].rule.key)),
        )  # fmt: skip

    def _controls(self) -> Iterable[FieldControl]:
        for section in self.sections():
            for drawn in [*section.plain, *section.more]:
                yield from [drawn.control] if drawn.control else []
                yield from drawn.parts
                for row in drawn.rows:
                    yield from [*row.days, *row.fields, *row.parts]

    def _is_in_a_row(self, name: str) -> bool:
        return any(
            name.startswith((f"{rule.key}[", f"{rule.key}.")) for rule in RULES if rule.kind in ROW_KINDS
        )

    def _said(self, name: str, kind: str = "") -> list[str]:
        """Return the faults of a field, lengths of time in words."""
        return [_fault_text(fault, kind) for fault in self.faults if fault.field == name]

    def _drawn(self, rule: PolicyRule) -> RuleControl:
        value = value_at(self.body, rule.key)
        errors = self._said(rule.key, rule.kind)
        if rule.kind == "parts":
            return RuleControl(rule, parts=self._parts(rule.key, value), errors=errors)
        if rule.kind in ROW_KINDS:
            rows = [self._row(rule, number, row) for number, row in enumerate(value)]
            return RuleControl(rule, rows=rows, is_list=True, errors=errors)
        control = FieldControl(rule.key, "text", rule.label, help=rule.help, unit=rule.unit, errors=errors)
        if rule.kind in TEXTS:
            control.kind, control.value = "radio", str(value)
            control.strategies = _strategies(rule, str(value))
        elif rule.kind == "yes_no":
            control.kind, control.is_checked, control.value = "check", value is True, "yes"
        elif rule.kind == "seconds":
            control.value = duration_text(value) if isinstance(value, int) else str(value)
        else:
            control.kind = "number" if rule.kind == "number" else "text"
            control.value = f"{value:.12g}" if isinstance(value, float) else str(value)
        if control.kind in ("text", "number"):
            control.default = in_words(rule, value_at(RECOMMENDED, rule.key))[0]
        return RuleControl(rule, control, errors=errors)

    def _parts(self, at: str, value: Mapping[str, Any]) -> list[FieldControl]:
        return [
            FieldControl(
                f"{at}.{work}", "number", WORK_NAMES[work], str(value.get(work, "")), errors=self._said(f"{at}.{work}")
            )
            for work in WORKS
        ]  # fmt: skip

    def _row(self, rule: PolicyRule, number: int, row: Any) -> PolicyTimeRow:
        at, drop = f"{rule.key}[{number}]", f"drop:{rule.key}:{number}"
        if rule.kind == "factors":
            model, factor = row
            named = f"{rule.key}.{model}"
            fields = [
                FieldControl(f"{at}.model", "select", _("Model"), str(model), choices=_models(str(model))),
                FieldControl(
                    f"{at}.factor", "number", _("Thousandths"), str(factor), errors=self._said(named)
                ),
            ]
            return PolicyTimeRow(number, drop, [], fields, [], [])
        days = [
            FieldControl(f"{at}.days", "check", name, str(day), is_checked=day in row["days"])
            for day, name in enumerate(DAY_NAMES.values())
        ]
        fields = [
            FieldControl(f"{at}.{key}", "text", label, str(row[key]), errors=self._said(f"{at}.{key}"))
            for key, label in (("from", _("From")), ("to", _("Until")))
        ]
        if rule.kind == "sleep_times":
            fields.append(
                FieldControl(
                    f"{at}.awake", "number", _("Idle nodes that stay awake"), str(row["awake"]),
                    errors=self._said(f"{at}.awake"),
                )
            )  # fmt: skip
        parts = self._parts(f"{at}.parts", row["parts"]) if rule.kind == "pool_times" else []
        errors = [*self._said(at), *self._said(f"{at}.days"), *self._said(f"{at}.parts")]
        return PolicyTimeRow(number, drop, days, fields, parts, errors)


def draft_of(body: Mapping[str, Any]) -> PolicyDraft:
    """Return a form filled with a whole body."""
    return PolicyDraft({**body, "memory_factors": sorted(body["memory_factors"].items())})


def _strategies(rule: PolicyRule, value: str) -> list[StrategyChoice]:
    """Return what can be chosen, and what an older version chose where that is offered no more."""
    texts, names = TEXTS[rule.kind], OFFERED[rule.key]
    shown = names if value in names or value not in texts else (*names, value)
    return [StrategyChoice(name, *texts[name], value_at(RECOMMENDED, rule.key) == name) for name in shown]


def _in_short(rule: PolicyRule, value: Any) -> str:
    """Return a value in a few words; one that was typed half is counted, not told."""
    try:
        return " · ".join(in_words(rule, value))
    except (TypeError, ValueError, KeyError, IndexError):
        return ""


def _models(own: str) -> list[tuple[str, str]]:
    """Return the device models of the fleet, and the one that is chosen where the fleet has it no longer."""
    found = [(row.slug, row.name) for row in DeviceModel.objects.order_by("name")]
    if own and own not in {slug for slug, _name in found}:
        found.append((own, own))
    return [("", _("Choose a model")), *found]


def _fault_text(fault: Fault, kind: str) -> str:
    """Return a fault as the form says it: a length of time is written in words, not in seconds."""
    if kind != "seconds":
        return sentence(fault)
    if fault.code == "not_whole":
        return _("Write a time such as 6 h, 90 min or 2 d.")
    facts = tuple((name, length(value) if isinstance(value, int) else value) for name, value in fault.facts)
    return sentence(Fault(fault.field, fault.code, facts))


def _text(data: QueryDict, name: str) -> str:
    return data.get(name, "").strip()[:MOST_TEXT]


def _whole(text: str) -> int | str:
    try:
        return int(text) if text.isascii() and len(text) <= 20 else text
    except ValueError:
        return text


def _number(text: str) -> float | str:
    try:
        return float(text.replace(",", ".")) if text.isascii() else text
    except ValueError:
        return text


def _seconds(text: str) -> int | str:
    found = parse_duration(text)
    return text if found is None else found


def _typed(data: QueryDict, rule: PolicyRule) -> Any:
    """Return a rule's value as it was typed."""
    if rule.kind in ROW_KINDS:
        return [_typed_row(data, rule, number) for number in range(_rows(data, rule.key))]
    if rule.kind == "parts":
        return _typed_parts(data, rule.key)
    text = _text(data, rule.key)
    if rule.kind == "yes_no":
        return text == "yes"
    if rule.kind == "seconds":
        return _seconds(text)
    if rule.kind == "number":
        return _whole(text) if rule.key in WHOLE else _number(text)
    return text


def _rows(data: QueryDict, key: str) -> int:
    """Return how many rows a list of the form has; more than a policy may have are not looked at."""
    text = data.get(f"{key}.rows", "0")
    most = MOST_TIMES + 1
    return min(int(text), most) if text.isascii() and text.isdecimal() and len(text) <= 4 else 0


def _typed_parts(data: QueryDict, at: str) -> dict[str, int | str]:
    texts = {work: _text(data, f"{at}.{work}") for work in WORKS}
    return {work: _whole(text) for work, text in texts.items() if text}


def _typed_row(data: QueryDict, rule: PolicyRule, number: int) -> Any:
    at = f"{rule.key}[{number}]"
    if rule.kind == "factors":
        return _text(data, f"{at}.model"), _whole(_text(data, f"{at}.factor"))
    days = [_whole(text[:4]) for text in data.getlist(f"{at}.days")[:8]]
    row: dict[str, Any] = {"days": days, "from": _text(data, f"{at}.from"), "to": _text(data, f"{at}.to")}
    if rule.kind == "pool_times":
        return {**row, "parts": _typed_parts(data, f"{at}.parts")}
    return {**row, "awake": _whole(_text(data, f"{at}.awake"))}


def _put(body: dict[str, Any], key: str, value: Any) -> None:
    *above, last = key.split(".")
    for part in above:
        body = body.setdefault(part, {})
    body[last] = value


def _add(body: dict[str, Any], key: str, kind: str) -> None:
    rows = value_at(body, key)
    if len(rows) >= (MOST_FACTORS if kind == "factors" else MOST_TIMES):
        return
    weekdays: dict[str, Any] = {"days": [0, 1, 2, 3, 4], "from": "", "to": ""}
    new: dict[str, Any] = {
        "pool_times": {**weekdays, "parts": {}},
        "sleep_times": {**weekdays, "awake": 1},
        "factors": ("", 1000),
    }
    rows.append(new[kind])


def _drop(body: dict[str, Any], key: str, number: int) -> None:
    rows = value_at(body, key)
    if number < len(rows):
        del rows[number]
