"""What a node's agent said it understands."""

from __future__ import annotations

from nodeagent.protocol.messages import CONTAINERS, STREAMS
from portal.fleet.models import Node


def serves_streams(node: Node) -> bool:
    """Say whether the node's agent serves terminals; older ones and those told not to do not."""
    return STREAMS in (node.features or [])


def runs_containers(node: Node) -> bool:
    """Say whether the node's agent runs jobs in containers."""
    return CONTAINERS in (node.features or [])
