"""What differs between two policies, rule by rule, in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from portal.policies.rules import GROUPS, RULES, Group, PolicyRule, in_words, value_at


@dataclass(frozen=True, slots=True)
class RuleChange:
    """A rule with its old and its new value, as lines of text."""

    rule: PolicyRule
    was: list[str]
    now: list[str]


@dataclass(frozen=True, slots=True)
class RuleLines:
    """A group of rules with their values as lines of text."""

    group: Group
    rules: list[tuple[PolicyRule, list[str]]]


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[RuleChange]:
    """Return the rules in which two whole bodies differ, in the order of the form."""
    return [
        RuleChange(rule, in_words(rule, was), in_words(rule, now))
        for rule in RULES
        if (was := value_at(old, rule.key)) != (now := value_at(new, rule.key))
    ]


def told(body: Mapping[str, Any]) -> list[RuleLines]:
    """Return a whole body in words, group by group."""
    return [
        RuleLines(
            group,
            [(rule, in_words(rule, value_at(body, rule.key))) for rule in RULES if rule.group == group.name],
        )
        for group in GROUPS
    ]
