from __future__ import annotations


class AgentRefused(Exception):
    """The portal will not talk to this agent: a stable code and what its operator should do."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail
