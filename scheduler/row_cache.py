"""Values made of database rows: built once, and kept for as long as their rows stay the same.

A turn looks at every device, placement and waiting request, and nearly all are what they were a turn ago.
PostgreSQL says in one text which version each row has (its place and the transaction that wrote it); only
rows whose version is new are read and built. The same value, as an object, means the same row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any, Generic, TypeVar

from portal.common.sql import Row, fetch

T = TypeVar("T")


class RowCache(Generic[T]):
    """The values of one SELECT, in its order.

    ``tables`` is its FROM part, ``aliases`` the tables in it whose rows make the value, the first one with an
    ``id`` that tells values apart. ``build`` makes a value of the ``columns``. Safe for several threads.
    """

    def __init__(
        self, tables: str, aliases: Sequence[str], which: str, columns: str, build: Callable[[Row], T]
    ) -> None:
        first = aliases[0]
        versions = ", ".join(f"{alias}.ctid, {alias}.xmin" for alias in aliases)
        self._versions = (
            f"SELECT array_to_string(ARRAY(SELECT concat_ws('.', {first}.id, {versions})"  # noqa: S608 (our own parts)
            f" FROM {tables} {which}), ' ')"
        )
        self._rows = f"SELECT {first}.id, {columns} FROM {tables} WHERE {first}.id = ANY(%s)"  # noqa: S608 (our own states)
        self._build = build
        self._text = ""
        self._known: dict[str, T] = {}
        self._values: tuple[T, ...] = ()
        self._lock = Lock()

    def read(self, values: Sequence[Any] = ()) -> tuple[T, ...]:
        """Return what there is now; the same tuple as before when nothing changed.

        A row that changes while this reads is seen as before or after, and read again next time.
        """
        ((text,),) = fetch(self._versions, values)
        with self._lock:
            if text != self._text:
                self._renew(text)
            return self._values

    def forget(self) -> None:
        """Build everything anew next time: something changed that the rows do not tell."""
        with self._lock:
            self._text, self._known, self._values = "", {}, ()

    def _renew(self, text: str) -> None:
        versions = text.split(" ") if text else []
        new = {version.partition(".")[0]: version for version in versions if version not in self._known}
        known = {version: self._known[version] for version in versions if version in self._known}
        if new:
            for pk, *row in fetch(self._rows, [[int(pk) for pk in new]]):
                known[new[str(pk)]] = self._build(tuple(row))
        self._known = known
        self._values = tuple(known[version] for version in versions if version in known)
        self._text = text
