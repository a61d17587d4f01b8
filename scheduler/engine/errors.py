"""What the engine refuses to work with; ``code`` is stable, the text says what to do next."""

from __future__ import annotations


class EngineError(ValueError):
    """Input the engine cannot decide on."""

    code = "engine_error"


class UnknownPolicy(EngineError):
    """A policy names an order or placement rule that does not exist."""

    code = "unknown_policy"

    def __init__(self, layer: str, name: str, known: list[str]) -> None:
        super().__init__(f"no {layer} policy called {name!r}; choose one of: {', '.join(known)}")
        self.layer = layer
        self.name = name


class BadSnapshot(EngineError):
    """Bytes that are not a snapshot of a known version."""

    code = "bad_snapshot"

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"{where}: {problem}; take a new snapshot")
        self.where = where
