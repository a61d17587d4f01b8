"""Asking a device in a test: what it, its driver or this account may not do ends the test as skipped, with the reason.

These refusals are no breach of the contract, the agent lives with each of them (sources: nvml.h of CUDA 13, return
codes of each function; NVIDIA, "MPS v3 Memory Partitioning"):

- NOT_SUPPORTED: utilisation and processes of a board or a vGPU that has none, utilisation with MIG on, events
  outside Linux hosts, MIG sizes of boards without MIG.
- NO_PERMISSION: places and instances of MIG (privileged), and with MIG on memory and processes of the whole device.
- FUNCTION_NOT_FOUND: the installed driver is older than the function.
"""

from __future__ import annotations

from typing import Any

import pytest

from nodeagent.drivers import errors
from nodeagent.drivers.errors import NvmlLikeError
from nodeagent.drivers.nvml.library.calls import NvmlCalls
from nodeagent.protocol.messages import DeviceFact
from tests.gpu.devices import Device

MAY_NOT = frozenset({errors.NOT_SUPPORTED, errors.NO_PERMISSION, errors.FUNCTION_NOT_FOUND})


def told(device: Device, doing: str, call: str, *args: Any, beside: frozenset[int] = frozenset()) -> Any:
    """Return the answer of a call, or skip where it may not be had; other refusals raise NvmlLikeError."""
    try:
        return NvmlCalls(device.library).do(call, *args, doing=doing)
    except NvmlLikeError as no:
        skip_if_it_may_not(no, beside=beside)
        raise


def skip_if_it_may_not(no: NvmlLikeError, *, beside: frozenset[int] = frozenset()) -> None:
    """Skip with the reason where a refusal means that device, driver or account may not; ``beside``: these as well."""
    if no.code in MAY_NOT | beside:
        pytest.skip(str(no))


def why_not(fact: DeviceFact, mode: str) -> str:
    """Return why a device is not offered in a mode, as the agent tells operators."""
    return fact.refusals.get(mode, "")
