"""What the schema says of a call: one decorator for summary, body, answer and refusals."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework import serializers

from portal.api.responses import Problem

F = TypeVar("F", bound=Callable[..., Any])
Shape = type[serializers.Serializer[Any]]
_WORDS = re.compile("[a-z]+")
_PROBLEM = "application/problem+json"
KEY = OpenApiParameter(
    "Idempotency-Key",
    str,
    OpenApiParameter.HEADER,
    description="Any text of up to 100 characters; the same key and body give the first answer again.",
)


def call(
    summary: str,
    *,
    answer: Shape | None = None,
    body: Shape | None = None,
    status: int = 200,
    is_list: bool = False,
    media_type: str = "application/json",
    parameters: Sequence[OpenApiParameter] = (),
    refusals: Sequence[int] = (),
    tag: str = "",
) -> Callable[[F], F]:
    """Describe one method of a view for the schema."""
    shown: dict[Any, Any] = {(status, media_type): _answer(answer, is_list=is_list, media_type=media_type)}
    for code in sorted({401, 403, 429, *refusals}):
        shown[(code, _PROBLEM)] = OpenApiResponse(Problem, description=_REFUSALS[code])

    def decorate(method: F) -> F:
        is_write = method.__name__ == "post"
        described: F = extend_schema(
            operation_id="_".join(_WORDS.findall(summary.lower())),
            summary=summary,
            description=method.__doc__ or summary,
            request=body,
            responses=shown,
            parameters=[*parameters, *([KEY] if is_write else [])],
            tags=[tag] if tag else None,
        )(method)
        return described

    return decorate


def query(
    name: str, description: str, kind: Any = str, *, enum: Sequence[str] | None = None
) -> OpenApiParameter:
    """Return a query parameter for the schema."""
    return OpenApiParameter(name, kind, OpenApiParameter.QUERY, description=description, enum=enum)


PAGING = (
    query("page_size", "How many to return.", int),
    query("cursor", "Take it from the `next` address of the page before.", int),
    query("ordering", "`-id` newest first, `id` oldest first.", enum=("id", "-id")),
)
AWAITING_ME = query("awaiting_me", "Only those one could decide on.", bool)
IF_MATCH = OpenApiParameter(
    "If-Match", str, OpenApiParameter.HEADER, required=True, description="The ETag of the version you read."
)
_REFUSALS = {
    400: "The body or the address cannot be decoded.",
    401: "No token, or one that is not accepted.",
    403: "Visible, but the role or the token's scope does not allow it.",
    404: "Nothing there, or nothing there for this person: both look the same.",
    409: "The object is not in a state that allows this, or a quota is used up.",
    412: "Somebody changed the object since it was read.",
    415: "The body is not JSON in UTF-8.",
    422: "Some values cannot be used; `errors` names them.",
    428: "Say which version you edit with If-Match.",
    429: "Too many calls of one person, or too many waiting requests of the team; see Retry-After.",
    503: "A store is away for a moment; nothing was changed.",
}


def _answer(answer: Shape | None, *, is_list: bool, media_type: str) -> Any:
    if answer is None:
        return OpenApiResponse(
            OpenApiTypes.STR if media_type.startswith("text/") else None, description="Done."
        )
    return _page_of(answer) if is_list else answer


_pages: dict[Shape, Shape] = {}


def _page_of(item: Shape) -> Shape:
    """Return the shape of a page of items."""
    if item not in _pages:
        fields = {
            "next": serializers.URLField(allow_null=True, help_text="Address of the next page."),
            "results": item(many=True),
            "__doc__": f"A page of {item.__name__}.",
        }
        _pages[item] = type(f"{item.__name__}Page", (serializers.Serializer,), fields)
    return _pages[item]
