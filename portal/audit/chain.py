"""The audit list as a chain: what is linked in the background, and whether it is still what was written.

docs/adr/0011-audit-chain.md has the reasons. Entries are written unlinked, so nobody who asks for GPU time waits
for the chain; a sweep links them a few seconds later.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime

from portal.audit.models import AuditHead
from portal.common.sql import fetch

BATCH, PART = 1000, 50_000
GENESIS = hashlib.sha256(b"berth audit 1").digest()

# Of the links after %(after)s up to %(to)s: the first that does not follow from the one before it.
FIRST_BAD = """
SELECT * FROM (
  SELECT l.seq, l.entry_id, lag(l.seq, 1, %(after)s) OVER w AS before, e.id IS NULL AS is_gone,
    l.digest IS DISTINCT FROM sha256(
      lag(l.digest, 1, %(digest)s) OVER w || convert_to(audit_text(l.seq, l.linked_at, e), 'UTF8')) AS is_changed
  FROM audit_auditlink l LEFT JOIN audit_auditentry e ON e.id = l.entry_id
  WHERE l.seq > %(after)s AND l.seq <= %(to)s
  WINDOW w AS (ORDER BY l.seq)
) links WHERE before <> seq - 1 OR is_gone OR is_changed ORDER BY seq LIMIT 1
"""
UNLINKED = """
SELECT min(e.id) FROM audit_auditentry e
WHERE e.id <= %s AND NOT EXISTS (SELECT 1 FROM audit_auditlink l WHERE l.entry_id = e.id)
"""


@dataclass(frozen=True, slots=True)
class Verdict:
    """``head`` is number and digest of the last link; ``fault`` names the first bad entry, empty when all is well."""

    links: int
    head: str
    fault: str = ""


def link_entries(*, now: datetime, batch: int = BATCH) -> int:
    """Link what was written since; returns how many. Each batch is a transaction; safe to repeat and to race."""
    total = 0
    while True:
        ((linked,),) = fetch("SELECT audit_chain(%s, %s)", [batch, now])
        total += int(linked)
        if linked < batch:
            return total


def verify(*, expected: str = "") -> Verdict:
    """Walk the whole chain and return what was found; ``expected`` is a head (``seq:digest``) kept elsewhere.

    Finds an entry that was edited, deleted or put in later, links that were changed or cut off. It changes nothing.
    """
    head = AuditHead.objects.filter(pk=1).first()
    if head is None:
        return Verdict(0, "", "the head of the chain is gone")
    after, digest = 0, GENESIS
    while after < head.seq:
        to = min(after + PART, head.seq)
        for seq, entry, before, is_gone, is_changed in fetch(
            FIRST_BAD, {"after": after, "to": to, "digest": digest}
        ):
            return Verdict(after, str(head), _said(seq, entry, before, is_gone, is_changed))
        ended = fetch("SELECT digest FROM audit_auditlink WHERE seq = %s", [to])
        if not ended:
            ((last,),) = fetch("SELECT coalesce(max(seq), 0) FROM audit_auditlink WHERE seq <= %s", [to])
            return Verdict(after, str(head), f"entry number {last + 1} is cut off: the head says {head.seq}")
        after, digest = to, bytes(ended[0][0])
    if digest != bytes(head.digest):
        return Verdict(after, str(head), f"entry number {head.seq} is not the one that the head was made of")
    ((stray,),) = fetch(UNLINKED, [head.floor])
    if stray is not None:
        return Verdict(
            after, str(head), f"the entry with id {stray} was put in later: the chain does not know it"
        )
    return Verdict(after, str(head), _unexpected(expected))


def _said(seq: int, entry: int, before: int, is_gone: bool, is_changed: bool) -> str:
    if before != seq - 1:
        return f"entry number {before + 1} is missing from the chain"
    if is_gone:
        return f"entry number {seq} (id {entry}) was deleted"
    return f"entry number {seq} (id {entry}) was changed" if is_changed else ""


def _unexpected(expected: str) -> str:
    """Say whether a head that was kept elsewhere is not in this chain: then all of it was written anew."""
    if not expected:
        return ""
    seq, _colon, digest = expected.partition(":")
    found = fetch("SELECT encode(digest, 'hex') FROM audit_auditlink WHERE seq = %s", [int(seq)])
    if found and found[0][0] == digest:
        return ""
    return f"entry number {seq} is not the one that was kept: the chain was written anew or cut off"
