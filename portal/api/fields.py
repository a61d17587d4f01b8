"""Fields that refuse what does not fit: every number bounded, every text bounded, no silent conversion."""

from __future__ import annotations

import re
import threading
from datetime import datetime
from typing import Any

from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext_lazy as _
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.settings import api_settings

from portal.api.wire import MICRO
from portal.common.errors import Invalid
from portal.teams.labels import check_tags


class _Kept(threading.local):
    """The bodies of this thread by class: making one copies its fields, which costs more than reading a call."""

    def __init__(self) -> None:
        self.bodies: dict[type[Body], Body] = {}


_kept = _Kept()


class Body(serializers.Serializer[Any]):
    """The body of a call; a field it does not know is an error, not noise."""

    @classmethod
    def read(cls, data: Any) -> dict[str, Any]:
        """Return the values of a decoded body, or raise ValidationError naming every field that cannot be used."""
        if data is None:
            nothing = serializers.ErrorDetail("No data provided", code="null")
            raise serializers.ValidationError({api_settings.NON_FIELD_ERRORS_KEY: [nothing]})
        body = _kept.bodies.get(cls)
        if body is None:
            body = _kept.bodies[cls] = cls()
        values: dict[str, Any] = body.run_validation(data)
        return values

    def to_internal_value(self, data: Any) -> Any:
        """Return the values, or raise ValidationError naming unknown and unusable fields."""
        if isinstance(data, dict):
            unknown = {
                str(name)[:60]: [
                    serializers.ErrorDetail(str(_("There is no such field.")), code="unknown_field")
                ]
                for name in data
                if name not in self.fields
            }
            if unknown:
                raise serializers.ValidationError(unknown)
        return super().to_internal_value(data)


class Empty(Body):
    """A call without a body (an empty object is fine)."""


class Whole(serializers.IntegerField):
    """A whole number within bounds, written as a JSON number."""

    def __init__(self, *, least: int, most: int, **more: Any) -> None:
        super().__init__(min_value=least, max_value=most, **more)

    def to_internal_value(self, data: Any) -> int:
        """Return the number, or fail for anything that is not a JSON integer."""
        if isinstance(data, bool) or not isinstance(data, int):
            self.fail("invalid")
        return data


class Flag(serializers.BooleanField):
    """Yes or no, written as a JSON boolean."""

    def to_internal_value(self, data: Any) -> bool:
        """Return the value, or fail for anything that is not a JSON boolean."""
        if not isinstance(data, bool):
            self.fail("invalid", input=data)
        return data


class Text(serializers.CharField):
    """A text of bounded length without line noise."""

    def __init__(self, *, most: int, **more: Any) -> None:
        super().__init__(max_length=most, **more)

    def to_internal_value(self, data: Any) -> str:
        """Return the text trimmed, or fail for anything that is not a JSON string."""
        if not isinstance(data, str):
            self.fail("invalid")
        return super().to_internal_value(data)


@extend_schema_field(
    {"type": "object", "additionalProperties": {"type": "string"}, "examples": [{"paper": "iclr"}]}
)
class TagsField(serializers.Field):  # type: ignore[type-arg]
    """Tags: an object of names with texts."""

    default_error_messages = {"invalid": _("Write tags as an object of names with texts.")}

    def to_internal_value(self, data: Any) -> dict[str, str]:
        """Return the tags, or fail naming what cannot be one."""
        if not isinstance(data, dict) or len(data) > 100:
            self.fail("invalid")
        try:
            return check_tags(data)
        except Invalid as error:
            raise serializers.ValidationError(str(error.fields["tags"])) from error

    def to_representation(self, value: Any) -> Any:
        """Return the value as it is: answers are shaped elsewhere."""
        return value


@extend_schema_field({"type": "string", "pattern": r"^\d{1,7}(\.\d{1,6})?$", "examples": ["2.50"]})
class PriceField(serializers.Field):  # type: ignore[type-arg]
    """A price as a decimal string; its value is whole micro-units."""

    default_error_messages = {
        "invalid": _("Write the price as a text like “2.50”, with at most six decimals.")
    }
    pattern = re.compile(r"[0-9]{1,7}(\.[0-9]{1,6})?")

    def to_internal_value(self, data: Any) -> int:
        """Return micro-units, or fail for anything that is not a decimal string."""
        if not isinstance(data, str) or not self.pattern.fullmatch(data):
            self.fail("invalid")
        whole, _dot, rest = data.partition(".")
        return int(whole) * MICRO + int(rest.ljust(6, "0"))

    def to_representation(self, value: Any) -> Any:
        """Return the value as it is: answers are shaped elsewhere."""
        return value


@extend_schema_field({"type": "string", "pattern": r"^\d{1,11}(\.\d{1,6})?$", "examples": ["12000.00"]})
class AmountField(PriceField):
    """An amount as a decimal string, larger than a price may be; its value is whole micro-units."""

    default_error_messages = {
        "invalid": _("Write the amount as a text like “12000.00”, with at most six decimals.")
    }
    pattern = re.compile(r"[0-9]{1,11}(\.[0-9]{1,6})?")


@extend_schema_field(OpenApiTypes.DATETIME)
class Instant(serializers.Field):  # type: ignore[type-arg]
    """An instant in RFC 3339 with its offset, in the years 2000 to 2999."""

    default_error_messages = {
        "invalid": _("Write the time like 2026-01-31T12:00:00Z, with its offset."),
    }

    def to_internal_value(self, data: Any) -> datetime:
        """Return an aware datetime."""
        try:
            at = parse_datetime(data) if isinstance(data, str) and len(data) <= 40 else None
        except (ValueError, OverflowError):
            at = None
        if at is None or at.tzinfo is None or not 2000 <= at.year <= 2999:
            self.fail("invalid")
        return at

    def to_representation(self, value: Any) -> Any:
        """Return the value as it is: answers are shaped elsewhere."""
        return value


_CLOCK = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])")


@extend_schema_field({"type": "string", "pattern": _CLOCK.pattern, "examples": ["07:30"], "nullable": True})
class ClockField(serializers.Field):  # type: ignore[type-arg]
    """A time of the day as ``HH:MM``, kept as minutes since midnight."""

    default_error_messages = {"invalid": _("Write a time of the day such as 07:30.")}

    def __init__(self, **more: Any) -> None:
        super().__init__(allow_null=True, required=False, **more)

    def to_internal_value(self, data: Any) -> int:
        """Return the minute of the day, or fail."""
        found = _CLOCK.fullmatch(data) if isinstance(data, str) else None
        if found is None:
            self.fail("invalid")
        return int(found[1]) * 60 + int(found[2])

    def to_representation(self, value: Any) -> Any:
        """Return the value as it is: answers are shaped elsewhere."""
        return value
