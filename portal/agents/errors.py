from __future__ import annotations


class AgentRefused(Exception):
    """The portal will not talk to this agent: a stable code and what its operator should do.

    ``why`` is for the portal's own log: whoever shows no key is not told which of several things it lacks.
    """

    def __init__(self, code: str, detail: str, *, why: str = "") -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail
        self.why = why
