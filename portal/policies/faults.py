"""What is wrong with a policy, as sentences for people; the engine gives codes and figures."""

from __future__ import annotations

from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from portal.common.errors import Invalid
from scheduler.engine.policy_body import DAYS, BadPolicy, Fault

SENTENCES: dict[str, Any] = {
    "not_object": gettext_lazy("Give an object of names and values."),
    "not_list": gettext_lazy("Give a list."),
    "not_text": gettext_lazy("Give a text."),
    "not_whole": gettext_lazy("Give a whole number."),
    "not_number": gettext_lazy("Give a number."),
    "not_yes_no": gettext_lazy("Give true or false."),
    "unknown": gettext_lazy("There is no such rule."),
    "missing": gettext_lazy("This is needed."),
    "too_small": gettext_lazy("At least %(least)s."),
    "too_large": gettext_lazy("At most %(most)s."),
    "too_many": gettext_lazy("At most %(most)s of them."),
    "not_known": gettext_lazy("Choose one of: %(known)s."),
    "bad_zone": gettext_lazy("There is no such time zone; write it like Europe/Berlin."),
    "bad_time": gettext_lazy("Write the time like 08:30; 24:00 is the end of the day."),
    "no_length": gettext_lazy("It begins and ends at the same time; a whole day is 00:00 to 24:00."),
    "overlaps": gettext_lazy("It overlaps with time %(other)s on %(day)s."),
    "no_days": gettext_lazy("Name at least one day."),
    "bad_day": gettext_lazy("Days are numbers from 0 (Monday) to 6 (Sunday)."),
    "day_twice": gettext_lazy("A day is named twice."),
    "no_parts": gettext_lazy("At least one part must be above zero."),
    "no_usual_parts": gettext_lazy("Say which parts hold outside these times."),
    "bad_model": gettext_lazy("Name a device model as the fleet does."),
}
DAY_NAMES: dict[str, Any] = dict(
    zip(
        DAYS,
        (
            gettext_lazy("Monday"),
            gettext_lazy("Tuesday"),
            gettext_lazy("Wednesday"),
            gettext_lazy("Thursday"),
            gettext_lazy("Friday"),
            gettext_lazy("Saturday"),
            gettext_lazy("Sunday"),
        ),
        strict=True,
    )
)


def sentence(fault: Fault) -> str:
    """Return a fault in the reader's language."""
    facts = dict(fault.facts)
    if "day" in facts:
        facts["day"] = DAY_NAMES[facts["day"]]
    return str(SENTENCES[fault.code]) % facts


def invalid(error: BadPolicy) -> Invalid:
    """Return the refusal that names every fault at its field; one without a field stands under ``body``."""
    fields: dict[str, list[dict[str, str]]] = {}
    for fault in error.faults:
        entry = {"code": fault.code, "detail": sentence(fault)}
        fields.setdefault(fault.field or "body", []).append(entry)
    return Invalid(_("This policy cannot decide a cycle."), fields=fields)
