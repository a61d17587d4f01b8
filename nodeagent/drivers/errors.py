"""Refusals of a driver, in the numbers of NVML, whichever vendor's driver it is."""

from __future__ import annotations

from typing import Final

INVALID_ARGUMENT: Final = 2
NOT_SUPPORTED: Final = 3
NO_PERMISSION: Final = 4
NOT_FOUND: Final = 6
DRIVER_NOT_LOADED: Final = 9
TIMEOUT: Final = 10
LIBRARY_NOT_FOUND: Final = 12
FUNCTION_NOT_FOUND: Final = 13
GPU_IS_LOST: Final = 15
RESET_REQUIRED: Final = 16
LIB_RM_VERSION_MISMATCH: Final = 18
IN_USE: Final = 19
INSUFFICIENT_RESOURCES: Final = 23
UNKNOWN: Final = 999

NAMES: Final[dict[int, str]] = {
    0: "SUCCESS",
    INVALID_ARGUMENT: "INVALID_ARGUMENT",
    NOT_SUPPORTED: "NOT_SUPPORTED",
    NO_PERMISSION: "NO_PERMISSION",
    NOT_FOUND: "NOT_FOUND",
    DRIVER_NOT_LOADED: "DRIVER_NOT_LOADED",
    TIMEOUT: "TIMEOUT",
    LIBRARY_NOT_FOUND: "LIBRARY_NOT_FOUND",
    FUNCTION_NOT_FOUND: "FUNCTION_NOT_FOUND",
    GPU_IS_LOST: "GPU_IS_LOST",
    RESET_REQUIRED: "RESET_REQUIRED",
    LIB_RM_VERSION_MISMATCH: "LIB_RM_VERSION_MISMATCH",
    IN_USE: "IN_USE",
    INSUFFICIENT_RESOURCES: "INSUFFICIENT_RESOURCES",
    UNKNOWN: "UNKNOWN",
}


class NvmlLikeError(Exception):
    """A driver said no: ``code`` as in nvml.h, ``name`` its word, ``detail`` for people."""

    def __init__(self, code: int, detail: str = "") -> None:
        self.code = code
        self.name = NAMES.get(code, f"ERROR_{code}")
        self.detail = detail
        super().__init__(f"{self.name}: {detail}" if detail else self.name)


class NotOfferedError(Exception):
    """This version of a driver cannot do that; the sentence says what can be used instead."""


# Trying again does not help: somebody has to install, allow or reboot first.
LASTING: Final = frozenset({NO_PERMISSION, LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND, LIB_RM_VERSION_MISMATCH})


class DriverUnavailableError(Exception):
    """No such driver on this machine; the sentence says what was looked for.

    ``waits_for`` names what may still come up, as when a kernel module is being loaded; "": trying again is no use.
    """

    def __init__(self, sentence: str, *, waits_for: str = "") -> None:
        super().__init__(sentence)
        self.waits_for = waits_for

    @classmethod
    def by(cls, code: int, sentence: str) -> DriverUnavailableError:
        """Return it for a refusal, which lasts or passes as its code says."""
        return cls(sentence, waits_for="" if code in LASTING else sentence)
