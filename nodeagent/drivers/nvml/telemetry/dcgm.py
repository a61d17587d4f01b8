"""Activity from a DCGM exporter on the same host: the only source for MIG slices on Ampere.

Fields and labels as NVIDIA's dcgm-exporter prints them (https://github.com/NVIDIA/dcgm-exporter). It collects
every 30 s unless started with ``--collect-interval 1000``; figures are as old as that.
"""

from __future__ import annotations

import http.client
import logging
import re
import urllib.request
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from nodeagent.drivers.nvml.library.figures import Activity

log = logging.getLogger(__name__)

NS: Final = 1_000_000_000
TIMEOUT_S: Final = 0.5
FIRST_WAIT_NS: Final = 2 * NS
MOST_WAIT_NS: Final = 60 * NS
MOST_BYTES: Final = 8 * 1024 * 1024

FIELDS: Final = {
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": "util",
    "DCGM_FI_PROF_SM_ACTIVE": "sm",
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": "tensor",
    "DCGM_FI_PROF_DRAM_ACTIVE": "bandwidth",
}
_LINE = re.compile(rf"^(?:{'|'.join(FIELDS)})\{{.*$", re.MULTILINE)

Key = tuple[str, int | None]
NOTHING: Final[Mapping[Key, Activity]] = MappingProxyType({})


class Dcgm:
    """Reads an exporter at most once a second; an absent one is asked less and less often, up to once a minute."""

    def __init__(
        self, url: str, *, fetch: Callable[[str], str] | None = None, timeout_s: float = TIMEOUT_S
    ) -> None:
        """Take the address of its metrics page; raises ValueError for anything but http."""
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"{url!r} is no address of a DCGM exporter; write http://localhost:9400/metrics")
        self._url = url
        self._timeout_s = timeout_s
        self._fetch = fetch or self._over_http
        # It runs on this host: a proxy for the way out is never asked.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self._due_ns: int | None = None
        self._wait_ns = 0
        self._last: Mapping[Key, Activity] = NOTHING

    def read(self, now_ns: int) -> Mapping[Key, Activity]:
        """Return activity by (device uuid, GPU instance id or None for all of it); empty when nobody answers."""
        if self._due_ns is not None and now_ns < self._due_ns:
            return self._last
        try:
            self._last = parse(self._fetch(self._url))
        except (OSError, ValueError, http.client.HTTPException) as no:
            if not self._wait_ns:
                log.warning("the DCGM exporter at %s does not answer (%s); slices without it", self._url, no)
            self._wait_ns = min(MOST_WAIT_NS, self._wait_ns * 2 or FIRST_WAIT_NS)
            self._last, self._due_ns = NOTHING, now_ns + self._wait_ns
        else:
            self._wait_ns, self._due_ns = 0, now_ns + NS
        return self._last

    def _over_http(self, url: str) -> str:
        with self._opener.open(url, timeout=self._timeout_s) as page:
            body: bytes = page.read(MOST_BYTES)
        return body.decode("utf-8", errors="replace")


def parse(text: str) -> dict[Key, Activity]:
    """Return the activity on an exporter's page; raises ValueError when it cannot be read.

    Only the lines of the four fields are parsed: a page has many more, and this runs every second.
    """
    found: dict[Key, dict[str, float]] = {}
    lines = "\n".join(_LINE.findall(text)) + "\n"
    for family in text_string_to_metric_families(lines):
        for sample in family.samples:
            name, uuid = FIELDS.get(sample.name), sample.labels.get("UUID", "")
            if name is None or not uuid or not 0 <= sample.value <= 1.5:
                continue
            instance = sample.labels.get("GPU_I_ID", "")
            key = (uuid, int(instance) if instance else None)
            found.setdefault(key, {})[name] = sample.value * 100
    return {key: Activity(**values) for key, values in found.items()}
