"""Which images jobs find on which nodes without a fetch, as the agents say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from django.db import transaction

from nodeagent.protocol.messages import NodeImages
from portal.accounts.models import User
from portal.fleet.models import Node, NodeImage

# One store for all, as in the demo.
EVERYBODY: Final = ""
MOST_SHOWN: Final = 100


@dataclass(frozen=True, slots=True)
class ImageHere:
    """An image that a person's jobs find without a fetch, and on which nodes; ``digest`` "" is unknown."""

    name: str
    digest: str
    size_mib: int
    nodes: tuple[str, ...]


@transaction.atomic
def store_images(node_id: int, told: NodeImages) -> None:
    """Replace what is known of a node's images; what a former agent of the node says changes nothing."""
    node = Node.objects.select_for_update(no_key=True).filter(pk=node_id, epoch=told.epoch).first()
    if node is None:
        return
    node.images_mib, node.image_limit_mib = told.used_mib, told.limit_mib
    node.save(update_fields=["images_mib", "image_limit_mib"])
    NodeImage.objects.filter(node=node).delete()
    facts = {(one.holder, one.name, one.digest): one for one in told.images}
    NodeImage.objects.bulk_create(
        NodeImage(node=node, holder=one.holder, name=one.name, digest=one.digest, size_mib=one.size_mib)
        for one in facts.values()
    )


def images_here(user: User) -> list[ImageHere]:
    """Return the images that this person's jobs find on nodes, by name, in one query."""
    rows = (
        NodeImage.objects.filter(holder__in=(EVERYBODY, user.username))
        .order_by("name", "digest", "node__name")
        .values_list("name", "digest", "size_mib", "node__name")
    )
    found: dict[tuple[str, str], ImageHere] = {}
    for name, digest, size_mib, node in rows:
        before = found.get((name, digest))
        nodes = () if before is None else tuple(one for one in before.nodes if one != node)
        found[name, digest] = ImageHere(name, digest, size_mib, (*nodes, node))
    return list(found.values())[:MOST_SHOWN]
