"""What a batch job is to a node: the order that comes with its lease, and the frames by which its output goes up.

Output travels on a socket of its own (``/jobs/v1/agent`` of a gateway): the agent asks where to go on (``tell``), and
sends pieces of at most ``MOST_PIECE`` bytes, deflated, each with the place where it begins. The gateway answers every
frame with how much it has stored. So a piece that is sent twice is stored once.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from nodeagent.protocol.codec import ProtocolError, read_object

MOST_PIECE: Final = 64 * 1024
TELL, LOG = "tell", "log"
_LENGTH: Final = 2
_MOST_HEAD: Final = 4096


@dataclass(frozen=True, slots=True)
class JobOrder:
    """What to run in a lease, once. ``secrets`` come as variables too, and their values are masked in what is kept
    of the output. ``ask_before_s`` before the end that the node knows, the job is asked to end (SIGTERM). Of its
    output the first ``head`` and the last ``tail`` bytes are kept, at most ``rate`` bytes a second.
    """

    words: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)
    workdir: str = ""
    ask_before_s: int = 30
    head: int = 10 * 1024 * 1024
    tail: int = 90 * 1024 * 1024
    rate: int = 1024 * 1024
    artifacts: tuple[str, ...] = ()

    def text(self) -> str:
        """Return the order as it stands in a desired lease."""
        return json.dumps(asdict(self), ensure_ascii=False, separators=(",", ":"))


def order_of(text: str) -> JobOrder:
    """Return the order that a desired lease carries; raises ProtocolError."""
    try:
        body = json.loads(text)
    except ValueError:
        raise ProtocolError("bad_job", "a job's order is one JSON object") from None
    if not isinstance(body, dict):
        raise ProtocolError("bad_job", "a job's order is one JSON object")
    known = JobOrder.__dataclass_fields__
    if not body.keys() <= known.keys():
        raise ProtocolError("unknown_field", "this agent does not know a field of the job's order")
    words, env, secrets = body.get("words"), body.get("env", {}), body.get("secrets", {})
    artifacts = body.get("artifacts", [])
    numbers = [body.get(name, 1) for name in ("ask_before_s", "head", "tail", "rate")]
    if not (
        _are_texts(words)
        and words
        and _are_texts(artifacts)
        and all(isinstance(one, dict) and _are_texts([*one, *one.values()]) for one in (env, secrets))
        and _are_texts([body.get("workdir", "")])
        and all(type(number) is int and number >= 0 for number in numbers)
    ):
        raise ProtocolError("bad_job", "a job's order has a field that makes no sense")
    return JobOrder(**{**body, "words": tuple(words), "artifacts": tuple(artifacts)})


def _are_texts(values: Any) -> bool:
    return isinstance(values, list) and all(type(one) is str and "\0" not in one for one in values)


@dataclass(frozen=True, slots=True)
class OutputPiece:
    """A piece of a job's output, or the question where to go on (``op`` "tell").

    ``offset`` counts from the first byte that was printed; ``is_last``: the job has ended, and this is the end of
    its output. What lies before ``offset`` and was never sent is lost: newer output has taken its place.
    """

    op: str
    lease: str
    generation: int
    offset: int = 0
    is_last: bool = False


@dataclass(frozen=True, slots=True)
class Stored:
    """The answer to a piece: how far the output is stored. ``is_done``: all of it is, or nobody wants it any more."""

    lease: str
    generation: int
    offset: int
    is_done: bool = False


def pack(piece: OutputPiece, data: bytes = b"") -> bytes:
    """Return the frame of a piece: the length of its head, the head as JSON, its bytes deflated."""
    head = json.dumps(asdict(piece), separators=(",", ":")).encode()
    return len(head).to_bytes(_LENGTH, "big") + head + (zlib.compress(data, 1) if data else b"")


def unpack(frame: bytes) -> tuple[OutputPiece, bytes]:
    """Return what a frame holds; raises ProtocolError, also for what would unfold to more than a piece."""
    length = int.from_bytes(frame[:_LENGTH], "big")
    if not 0 < length <= _MOST_HEAD or len(frame) < _LENGTH + length:
        raise ProtocolError("bad_frame", "a frame has a head")
    piece = read_object(OutputPiece, _json(frame[_LENGTH : _LENGTH + length]))
    packed = frame[_LENGTH + length :]
    if not packed:
        return piece, b""
    unfold = zlib.decompressobj()
    try:
        data = unfold.decompress(packed, MOST_PIECE + 1)
    except zlib.error:
        raise ProtocolError("bad_frame", "a piece is deflated") from None
    if len(data) > MOST_PIECE or unfold.unconsumed_tail:
        raise ProtocolError("too_large", f"a piece has at most {MOST_PIECE} bytes")
    return piece, data


def stored_text(stored: Stored) -> str:
    """Return the answer as it is sent."""
    return json.dumps(asdict(stored), separators=(",", ":"))


def stored_of(text: str) -> Stored:
    """Return an answer that came; raises ProtocolError."""
    return read_object(Stored, _json(text.encode()))


def _json(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        raise ProtocolError("bad_json", "a head is one JSON object") from None
