"""When nodes were heard, kept as intervals: what says later whether a device idled, or nobody knows."""

from __future__ import annotations

from datetime import datetime, timedelta

from portal.common.sql import execute

# An agent speaks every few seconds, and this is noted once a minute. In a longer gap nobody knows what was.
LONGEST_GAP = timedelta(minutes=3)
_NOTE = """
WITH latest AS (
  SELECT DISTINCT ON (node_id) id, node_id, ended_at FROM fleet_nodepresence ORDER BY node_id, ended_at DESC),
heard AS (
  SELECT n.id, n.last_seen_at AS at, l.id AS presence_id, l.ended_at
    FROM fleet_node n LEFT JOIN latest l ON l.node_id = n.id
   WHERE n.last_seen_at > greatest(l.ended_at, %s)),
grown AS (
  UPDATE fleet_nodepresence p SET ended_at = h.at FROM heard h
   WHERE p.id = h.presence_id AND h.at - h.ended_at <= %s RETURNING p.node_id)
INSERT INTO fleet_nodepresence (node_id, began_at, ended_at)
SELECT h.id, h.at, h.at FROM heard h WHERE h.presence_id IS NULL OR h.at - h.ended_at > %s
    ON CONFLICT DO NOTHING
"""


def note_presence(*, now: datetime) -> int:
    """Note which nodes were heard since the last look; returns how many came back after a gap. Safe to repeat."""
    return execute(_NOTE, [now - LONGEST_GAP, LONGEST_GAP, LONGEST_GAP])
