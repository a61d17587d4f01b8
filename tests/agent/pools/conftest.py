"""A real cluster for the tests of back ends."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.pools.slurm_cluster import SlurmCluster, why_no_slurm


@pytest.fixture(scope="session")
def slurm() -> Iterator[SlurmCluster]:
    """A real cluster of two hosts with eight units each, for all tests of this process.

    Not in a folder of pytest: those are closed to the holders whose jobs run there.
    """
    if why := why_no_slurm():
        pytest.skip(why)
    with (
        tempfile.TemporaryDirectory(prefix="berth-slurm-", ignore_cleanup_errors=True) as folder,
        SlurmCluster(Path(folder)).running() as cluster,
    ):
        yield cluster
