"""What a job's first process is given on its stdin: its own program, compiled, and what to run."""

from __future__ import annotations

import marshal
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from nodeagent.containers.boxes import LeaseContainers, plain_path
from nodeagent.containers.podman import within
from nodeagent.containers.pulling import PulledImage
from nodeagent.protocol.jobs import JobOrder
from nodeagent.reconcile.lease_records import COLLECTED_WITHIN_S, LeaseRecord
from nodeagent.workloads.entry import EntryRefusedError

# What is written down of a job that ends is there within this much of COLLECTED_WITHIN_S.
COLLECT_MARGIN_S: Final = 10
# Compiled once here: a node may begin dozens of jobs at once, and each would spend a third of its start on that.
RUNNER: Final = compile(
    Path(__file__).with_name("runner.py").read_text(), "runner", "exec", dont_inherit=True
)
PROGRAM: Final = marshal.dumps(RUNNER)
COLLECTOR: Final = (Path(__file__).with_name("collector.py")).read_text()
# The program comes with its input: the holder may not be able to read ours, and nobody wants it in a list of processes.
LOAD: Final = "import marshal,sys;exec(marshal.load(sys.stdin.buffer))"


def container_spec(
    containers: LeaseContainers, record: LeaseRecord, order: JobOrder, image: PulledImage, sockets: Path
) -> dict[str, Any]:
    """Return what the job's first process runs for a job in a container: Podman, with the job's own words behind.

    ``sockets`` is the lease's folder in which apps listen: they run in the container, who opens them does not.
    Podman gets none of the job's variables: they could make it do something else. Raises EntryRefusedError.
    """
    box = containers.box(record)
    box = replace(box, mounts={**box.mounts, plain_path(str(sockets)): False})
    inside = {**box.env, **order.env, **order.secrets}
    if named := next((name for name, value in inside.items() if "\n" in value or "\r" in value), ""):
        raise EntryRefusedError(
            "bad_variable",
            f"{named} has several lines, which Podman cannot hand on; encode it, as base64 say",
        )
    own = containers.podman.run(box, image.id, (), order.workdir)
    return {
        "words": [*own, *order.words],
        "own": len(own),
        "env": containers.engine_env(record.user),
        "inside": inside,
        "workdir": within(box.home, order.workdir),
    }


def spec_text(order: JobOrder, spec: dict[str, Any], become: list[int] | None) -> bytes:
    """Return what a job's first process reads once it has its program."""
    spec = {
        **spec,
        "masks": [value for value in order.secrets.values() if len(value) >= 4],
        "head": max(1, order.head),
        "tail": max(1, order.tail),
        "rate": max(1, order.rate),
        "burst": 4 * max(1, order.rate),
        "become": become,
    }
    if order.artifacts:
        spec["artifacts"] = {
            "program": COLLECTOR,
            "patterns": order.artifacts,
            "most_files": order.most_files,
            "most_bytes": order.most_bytes,
            "within_s": COLLECTED_WITHIN_S - COLLECT_MARGIN_S,
        }
    return marshal.dumps(spec)


def input_of(order: JobOrder, spec: dict[str, Any], become: list[int] | None) -> int:
    """Return an open file with what a job's first process reads: its program, then what to run."""
    fd = os.memfd_create("berth-job")
    with open(os.dup(fd), "wb") as file:
        file.write(PROGRAM)
        file.write(spec_text(order, spec, become))
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
