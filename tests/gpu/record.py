"""What a card says of itself, as a JSON document: to compare the tables of this repository with."""

from __future__ import annotations

from typing import Any

from nodeagent.drivers.nvml.words import text
from tests.gpu.cards import Card

INFO = (
    "id",
    "isP2pSupported",
    "sliceCount",
    "instanceCount",
    "multiprocessorCount",
    "copyEngineCount",
    "decoderCount",
    "encoderCount",
    "jpegCount",
    "ofaCount",
    "memorySizeMB",
)


def facts_of(card: Card) -> dict[str, Any]:
    """Return the identity, MIG sizes with ids and places, and the features of a card; refusals by their code."""
    nvml, handle = card.library, card.handle
    return {
        "driver": card.driver.version,
        "nvml": _answer(card, "nvmlSystemGetNVMLVersion"),
        "name": _answer(card, "nvmlDeviceGetName", handle),
        "pci_device_id": hex(nvml.nvmlDeviceGetPciInfo(handle).pciDeviceId >> 16),
        "compute_capability": _answer(card, "nvmlDeviceGetCudaComputeCapability", handle),
        "memory_mib": nvml.nvmlDeviceGetMemoryInfo(handle).total // 1024**2,
        "sm_count": card.fact.sm_count,
        "mig_modes": list(card.mig_modes),
        "compute_mode": _answer(card, "nvmlDeviceGetComputeMode", handle),
        "event_types": _answer(card, "nvmlDeviceGetSupportedEventTypes", handle),
        "virtualization": _answer(card, "nvmlDeviceGetVirtualizationMode", handle),
        "modes": list(card.fact.modes),
        "refusals": dict(card.fact.refusals),
        "profiles": [_profile(card, enum, info) for enum, info in card.profiles()],
    }


def _profile(card: Card, enum: int, info: Any) -> dict[str, Any]:
    known = {name: int(getattr(info, name)) for name in INFO}
    return {"enum": enum, "name": text(info.name), **known, "placements": card.placements(int(info.id))}


def _answer(card: Card, call: str, *args: Any) -> Any:
    code = card.code(call, *args)
    if code:
        return {"refused": code}
    value = getattr(card.library, call)(*args)
    return text(value) if isinstance(value, bytes) else value
