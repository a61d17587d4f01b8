"""Where the path of a request can be broken on purpose: before and after every commit and every message.

``failpoint(name)`` does nothing unless a drill runs (``tools/drill``); the settings refuse a folder of orders
anywhere else. The mechanism is the agent's, which knows no web stack.
"""

from __future__ import annotations

from nodeagent.protocol.failpoints import FailpointReached, failpoint

__all__ = ["POINTS", "FailpointReached", "failpoint"]

# Every point of portal, worker and agent with what stands on either side of it. A test holds this against the code.
POINTS = {
    "submit.before_store": "a request was checked, nothing is written",
    "submit.stored": "a request is written; committed unless the call carries an Idempotency-Key",
    "keyed.before_commit": "effect and answer of a call with a key are written, not committed",
    "keyed.committed": "effect and answer of a call with a key are committed, nobody was answered",
    "nudge.before_send": "work is committed and owed, the worker does not know",
    "turn.before_commit": "grants are written, not committed",
    "turn.committed": "grants are committed, the nudge they answer is still owed",
    "desired.before_send": "a node's new desired state was read, not sent",
    "desired.sent": "a node's new desired state was sent",
    "report.before_commit": "what a node observed is written, not committed",
    "report.committed": "what a node observed is committed, the node was not told",
    "release.before_commit": "a lease was released, not committed",
    "release.committed": "a release is committed, its holder was not answered",
    "expire.before_commit": "leases whose time is up were ended, not committed",
    "meter.before_commit": "usage of a batch of leases is written, not committed",
    "meter.batch_done": "usage of a batch of leases is committed, others are still to come",
    "close.team_issued": "one team's invoice is written, the month is not closed",
    "close.before_commit": "all invoices are written and the month is closed, not committed",
    "agent.received": "the agent read a desired state, nothing of it is in its journal",
    "agent.accepted": "the agent's journal holds a desired state, nothing was done",
    "agent.before_report": "the agent did what was wanted, nobody was told",
    "agent.reported": "the agent told what it did",
    "driver.share.before": "a slice is about to be made",
    "driver.share.after": "a slice exists, the agent does not know",
    "driver.gi.after": "a GPU instance exists, its compute instance does not",
    "driver.ci.after": "a MIG slice exists, the agent does not know",
    "driver.attach.before": "a slice exists, its holder is not in it",
    "driver.attach.after": "a holder is in its slice, the agent does not know",
    "driver.unshare.after": "a slice was removed, the agent does not know",
    "driver.unci.after": "a MIG slice lost its compute instance, the GPU instance is still there",
    "driver.ungi.after": "a MIG slice was removed, the agent does not know",
}
