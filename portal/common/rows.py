"""Objects by SQL that is written once, for the reads that every lease and every call makes.

Django builds the text of a query anew each time; for five joined tables that costs some ten times what reading
the answer does. ``make bench ARGS="rows"`` measures both in one run (CPU of the process, median of 400):

    a lease with six relations    425 µs here, 2,167 µs as a queryset
    a lease to be moved on        562 µs, 2,084 µs (4 leases with team and request)
    a flavor with its model       148 µs, 915 µs
    the prices of a span          245 µs, 1,037 µs
    a node, a team                160 µs, 590 µs

A lease needs some ten of these from request to bill, 8 ms of the 23 ms that it costs in all. What is read once in a
cycle, by a sweep or for gangs and bookings only is a queryset.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar, cast

from django.db import connection
from django.db.models import Field, ForeignKey, Model

from portal.common.sql import fetch

M = TypeVar("M", bound=Model)
Convert = Callable[[Any, Any, Any], Any]


@dataclass(frozen=True, slots=True)
class JoinedTable:
    """One table of the join: where its columns stand in a row and whom its objects belong to."""

    alias: str
    model: type[Model]
    names: list[str]
    begin: int
    key: int
    converts: tuple[tuple[int, Convert], ...]
    parent: int
    link: ForeignKey[Any, Any] | None
    may_be_absent: bool

    def build(self, row: Sequence[Any]) -> Model | None:
        """Return this part of a row as an object, None for a relation that is not set."""
        if row[self.key] is None:
            return None
        values = list(row[self.begin : self.begin + len(self.names)])
        for index, convert in self.converts:
            values[index] = convert(values[index], None, connection)
        return self.model.from_db(connection.alias, self.names, values)


class NewRow(Generic[M]):
    """Stores new objects of a model: ``sql`` inserts one and returns its id, ``values`` are its columns.

    What the database makes (the id) is left out; everything else stands in the object, defaults included.
    """

    def __init__(self, model: type[M]) -> None:
        self._model = model

    @cached_property
    def _fields(self) -> list[Field[Any, Any]]:
        return [field for field in self._model._meta.concrete_fields if not field.primary_key]

    @cached_property
    def sql(self) -> str:
        """Return the INSERT with one placeholder per column."""
        columns = ", ".join(f'"{field.column}"' for field in self._fields)
        marks = ", ".join(["%s"] * len(self._fields))
        return f'INSERT INTO "{self._model._meta.db_table}" ({columns}) VALUES ({marks}) RETURNING id'  # noqa: S608 (our own states)

    def values(self, one: M) -> list[Any]:
        """Return the object's values in the order of ``sql``."""
        return [field.get_db_prep_save(getattr(one, field.attname), connection) for field in self._fields]


class Rows(Generic[M]):
    """Reads objects of a model with relations at hand.

    In conditions the model's table is ``it`` and each relation is named by its path: ``"flavor"``,
    ``"flavor.device_model"``; quote them, as some are reserved words.
    """

    def __init__(self, model: type[M], *relations: str) -> None:
        """Take the relations to bring along, each after the one it hangs on."""
        self._model, self._relations = model, relations

    def where(self, condition: str, values: Sequence[Any]) -> list[M]:
        """Return the objects for which the SQL condition holds; it may go on with ORDER BY, LIMIT, FOR UPDATE.

        ``condition`` is written by us; whatever comes from outside goes into ``values``.
        """
        return [self._build(row) for row in fetch(f"{self._select} WHERE {condition}", values)]

    def first(self, condition: str, values: Sequence[Any]) -> M | None:
        """Return the only object for which a condition on something unique holds, or None."""
        found = self.where(condition, values)
        return found[0] if found else None

    def _build(self, row: Sequence[Any]) -> M:
        made: list[Model | None] = []
        for part in self._parts:
            one = part.build(row)
            made.append(one)
            parent = made[part.parent]
            if part.link is not None and parent is not None:
                part.link.set_cached_value(parent, cast(Model, one))
        return cast(M, made[0])

    @cached_property
    def _parts(self) -> list[JoinedTable]:
        parts = [_part("it", self._model, 0, 0, None, may_be_absent=False)]
        for path in self._relations:
            above, _dot, name = path.rpartition(".")
            parent = next(i for i, part in enumerate(parts) if part.alias == (above or "it"))
            link = cast("ForeignKey[Any, Any]", parts[parent].model._meta.get_field(name))
            begin = parts[-1].begin + len(parts[-1].names)
            may_be_absent = link.null or parts[parent].may_be_absent
            parts.append(_part(path, link.related_model, begin, parent, link, may_be_absent))
        return parts

    @cached_property
    def _select(self) -> str:
        columns, joins = [], []
        for part in self._parts:
            columns += [f'"{part.alias}"."{field.column}"' for field in part.model._meta.concrete_fields]
            if part.link is not None:
                parent, key = self._parts[part.parent].alias, part.model._meta.pk.column
                kind = "LEFT JOIN" if part.may_be_absent else "JOIN"
                joins.append(
                    f'{kind} "{part.model._meta.db_table}" "{part.alias}"'
                    f' ON "{part.alias}"."{key}" = "{parent}"."{part.link.column}"'
                )
        table = self._model._meta.db_table
        return f'SELECT {", ".join(columns)} FROM "{table}" "it" {" ".join(joins)}'  # noqa: S608 (our own states)


def _part(
    alias: str,
    model: type[Model],
    begin: int,
    parent: int,
    link: ForeignKey[Any, Any] | None,
    may_be_absent: bool,
) -> JoinedTable:
    fields: Sequence[Field[Any, Any]] = model._meta.concrete_fields
    key = next(index for index, field in enumerate(fields) if field.primary_key)
    converts = tuple(
        (index, field.from_db_value) for index, field in enumerate(fields) if hasattr(field, "from_db_value")
    )
    names = [field.attname for field in fields]
    return JoinedTable(alias, model, names, begin, begin + key, converts, parent, link, may_be_absent)
