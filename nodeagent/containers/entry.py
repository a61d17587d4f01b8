"""How programs get into leases whose job runs in a container: into that container, as its account."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from nodeagent.containers.boxes import LeaseContainers, container_name
from nodeagent.reconcile.lease_records import LeaseRecord
from nodeagent.runtimes.base import Key
from nodeagent.workloads.entry import SSH_SESSION, HolderCommand, LeaseEntry
from nodeagent.workloads.inside import ContainerPlace

INSIDE = "nodeagent.workloads.inside"
DIALER = "nodeagent.workloads.dialer"


class ContainerEntry:
    """The entry of a host, for everything but jobs themselves: a lease without an image is entered as it always was.

    The job's container is the lease's only one: until it runs, whoever comes in is told so and may try again.
    """

    def __init__(self, entry: LeaseEntry, containers: LeaseContainers) -> None:
        self._entry = entry
        self._containers = containers
        self.outlives_agent = entry.outlives_agent

    @property
    def held(self) -> set[Key]:
        """The leases whose files are still being collected."""
        return self._entry.held

    @held.setter
    def held(self, keys: set[Key]) -> None:
        self._entry.held = keys

    def command(
        self, record: LeaseRecord, words: Sequence[str] = (), env: Mapping[str, str] | None = None
    ) -> HolderCommand:
        """Return what runs ``words`` in the lease's container, a shell of its image for none."""
        if not record.image:
            return self._entry.command(record, words, env)
        return self._joined(record, INSIDE, [], words, env)

    def dialer(self, record: LeaseRecord, descriptor: int) -> HolderCommand:
        """Return the same process as elsewhere, in the network of the container."""
        if not record.image:
            return self._entry.dialer(record, descriptor)
        return self._joined(record, DIALER, [str(descriptor)])

    def ssh_session(self, record: LeaseRecord) -> HolderCommand:
        """Return the same server as elsewhere: its shells, files and forwards are those of the container."""
        if not record.image:
            return self._entry.ssh_session(record)
        return self._joined(record, SSH_SESSION, [])

    def _joined(
        self,
        record: LeaseRecord,
        module: str,
        before: Sequence[str],
        words: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> HolderCommand:
        """Return the agent's Python in the lease; played by root it becomes the container's account itself."""
        podman, box = self._containers.podman, self._containers.box(record)
        uid, gid = (int(word) for word in box.user.split(":"))
        place = ContainerPlace(
            inspect=podman.first_process(container_name(record.key)),
            engine_env=self._containers.engine_env(record.user),
            home=box.home,
            uid=uid if podman.is_root else None,
            gid=gid if podman.is_root else None,
            keeps=tuple(env or ()),
        )
        python = [sys.executable, "-I", "-m", module, *before, place.text(), *words]
        return replace(self._entry.command(record, python, env), account=None)

    def run_folder(self, record: LeaseRecord) -> Path:
        """Return the lease's folder for sockets, which its container sees as well."""
        return self._entry.run_folder(record)

    def clear(self, key: Key) -> None:
        """End what is left of a lease that is over, and remove its folders."""
        self._entry.clear(key)

    def remove_folders(self, key: Key) -> None:
        """Remove the folders of a lease in which nothing runs."""
        self._entry.remove_folders(key)

    def keep_only(self, key: Key, pid: int) -> bool:
        """End everything in a lease but one process."""
        return self._entry.keep_only(key, pid)

    def close(self) -> None:
        """Leave nothing behind that no later agent would find."""
        self._entry.close()
