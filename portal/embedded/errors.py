from __future__ import annotations


class CannotStart(Exception):
    """A reason not to start, told to a person in one sentence with what to do next."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
