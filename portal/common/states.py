"""State tables: what may follow what, in code and as a trigger in the database."""

from __future__ import annotations

from collections.abc import Mapping, Set

Table = Mapping[str, Set[str]]


class IllegalMove(Exception):
    """A step that the table does not have: always a mistake in the code, never bad input."""


def check_move(table: Table, was: str, now: str, what: str) -> None:
    """Raise ``IllegalMove`` when ``now`` may not follow ``was``."""
    if now not in table.get(was, frozenset()):
        raise IllegalMove(f"{what}: {was} -> {now}")


def guard_sql(relation: str, table: Table) -> str:
    """Return SQL for a trigger that refuses every state change the table does not have."""
    pairs = " OR ".join(
        f"(OLD.state = '{was}' AND NEW.state IN ({', '.join(repr(str(n)) for n in sorted(nexts))}))"
        for was, nexts in table.items()
        if nexts
    )
    return f"""
CREATE OR REPLACE FUNCTION {relation}_state_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF OLD.state IS DISTINCT FROM NEW.state AND NOT ({pairs}) THEN
    RAISE EXCEPTION '{relation} %: state % cannot follow %', OLD.id, NEW.state, OLD.state
      USING ERRCODE = 'check_violation';
  END IF;
  RETURN NEW;
END $$;
DROP TRIGGER IF EXISTS {relation}_state_guard ON {relation};
CREATE TRIGGER {relation}_state_guard BEFORE UPDATE OF state ON {relation}
  FOR EACH ROW EXECUTE FUNCTION {relation}_state_guard();
"""


def append_only_sql(relation: str) -> str:
    """Return SQL for a trigger that refuses to change or delete a row once written."""
    return f"""
CREATE OR REPLACE FUNCTION {relation}_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION '{relation} is append-only' USING ERRCODE = 'check_violation';
END $$;
DROP TRIGGER IF EXISTS {relation}_append_only ON {relation};
CREATE TRIGGER {relation}_append_only BEFORE UPDATE OR DELETE ON {relation}
  FOR EACH ROW EXECUTE FUNCTION {relation}_append_only();
"""
