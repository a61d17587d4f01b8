"""What a batch job is to a node: the order that comes with its lease, and the frames by which its output goes up.

Output travels on a socket of its own (``/jobs/v1/agent`` of a gateway): the agent asks where to go on (``tell``), and
sends pieces of at most ``MOST_PIECE`` bytes, deflated, each with the place where it begins. The gateway answers every
frame with how much it has stored. So a piece that is sent twice is stored once. The files that a job leaves go the
same way, on a socket beside, in larger pieces that are not deflated: each names its file.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from nodeagent.protocol.codec import ProtocolError, read_object

MOST_PIECE: Final = 64 * 1024
MOST_FILE_PIECE: Final = 512 * 1024
TELL, LOG = "tell", "log"
FILE, LEFT_OUT, ALL_SENT = "file", "left_out", "all_sent"
# Why a job waits that may have begun already: nobody can tell until the agent says more.
BEGINNING: Final = "beginning"
_LENGTH: Final = 2
_MOST_HEAD: Final = 4096
_NUMBERS: Final = (
    *("ask_before_s", "head", "tail", "rate", "most_files", "most_bytes", "ordinal", "limit_s", "notice_s"),
)


@dataclass(frozen=True, slots=True)
class JobOrder:
    """What to run in a lease, once. ``secrets`` come as variables too, and their values are masked in what is kept
    of the output. ``ask_before_s`` before the end that the node knows, the job is asked to end (SIGTERM). Of its
    output the first ``head`` and the last ``tail`` bytes are kept, at most ``rate`` bytes a second. What
    ``artifacts`` name below the working folder is collected at the end, ``most_files`` and ``most_bytes`` at most; sent
    only to agents with the feature "artifacts".
    ``image``: run it in a container of this one (nodeagent.protocol.images); sent only to agents with the feature
    "containers".
    ``ordinal``: it is the lease's first job, or follows the one before it at once. It may run for ``limit_s`` (0: to
    the end of its lease) and is asked to end ``notice_s`` before. ``is_followed``: others wait that may follow it, so
    its lease waits a moment for their order. These four are sent only to agents with the feature "jobs_follow".
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
    most_files: int = 0
    most_bytes: int = 0
    image: str = ""
    ordinal: int = 1
    limit_s: int = 0
    notice_s: int = 0
    is_followed: bool = False

    def text(self) -> str:
        """Return the order as it stands in a desired lease; an agent of before knows nothing of newer fields."""
        said = {
            name: value
            for name, value in asdict(self).items()
            if value or name not in ("image", "artifacts", "limit_s", "notice_s", "is_followed")
        }
        if not self.limit_s:
            said.pop("ordinal")
        if not self.artifacts:
            said = {name: value for name, value in said.items() if name not in ("most_files", "most_bytes")}
        return json.dumps(said, ensure_ascii=False, separators=(",", ":"))


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
    numbers = [body.get(name, 1) for name in _NUMBERS]
    if not (
        _are_texts(words)
        and words
        and _are_texts(artifacts)
        and all(isinstance(one, dict) and _are_texts([*one, *one.values()]) for one in (env, secrets))
        and _are_texts([body.get("workdir", ""), body.get("image", "")])
        and type(body.get("is_followed", False)) is bool
        and all(type(number) is int and number >= 0 for number in numbers)
    ):
        raise ProtocolError("bad_job", "a job's order has a field that makes no sense")
    return JobOrder(**{**body, "words": tuple(words), "artifacts": tuple(artifacts)})


def image_in(text: str) -> str:
    """Return the image that an order names, "" for none, and for one that cannot be read."""
    try:
        return order_of(text).image
    except ProtocolError:
        return ""


def ordinal_in(text: str) -> int:
    """Return which of its lease's jobs an order is for; 1 for one that cannot be read."""
    try:
        return order_of(text).ordinal
    except ProtocolError:
        return 1


def keeps_files(text: str) -> bool:
    """Say whether an order names files to be collected at the end of the job; no for one that cannot be read."""
    try:
        return bool(order_of(text).artifacts)
    except ProtocolError:
        return False


def _are_texts(values: Any) -> bool:
    return isinstance(values, list) and all(type(one) is str and "\0" not in one for one in values)


@dataclass(frozen=True, slots=True)
class OutputPiece:
    """A piece of a job's output, or the question where to go on (``op`` "tell").

    ``offset`` counts from the first byte that was printed; ``is_last``: the job has ended, and this is the end of
    its output. What lies before ``offset`` and was never sent is lost: newer output has taken its place. ``ordinal``:
    of which of the lease's jobs.
    """

    op: str
    lease: str
    generation: int
    offset: int = 0
    is_last: bool = False
    ordinal: int = 1


@dataclass(frozen=True, slots=True)
class ArtifactPiece:
    """A piece of a ``file`` that a job left, one that was ``left_out`` and ``why``, or the word that that is all.

    ``size`` and ``sha256`` are those of the whole file, ``offset`` says where in it this piece begins. With
    ``left_out`` and no path, ``size`` says how many more were.
    """

    op: str
    lease: str
    generation: int
    path: str = ""
    size: int = 0
    sha256: str = ""
    offset: int = 0
    why: str = ""


@dataclass(frozen=True, slots=True)
class Stored:
    """The answer to a piece: how far the output is stored. ``is_done``: all of it is, or nobody wants it any more."""

    lease: str
    generation: int
    offset: int
    is_done: bool = False
    ordinal: int = 1


def pack(piece: OutputPiece | ArtifactPiece, data: bytes = b"") -> bytes:
    """Return the frame of a piece: the length of its head, the head as JSON, its bytes, those of output deflated."""
    head = json.dumps(_said(piece), separators=(",", ":")).encode()
    body = zlib.compress(data, 1) if data and isinstance(piece, OutputPiece) else data
    return len(head).to_bytes(_LENGTH, "big") + head + body


def unpack(frame: bytes) -> tuple[OutputPiece | ArtifactPiece, bytes]:
    """Return what a frame holds; raises ProtocolError, also for what would unfold to more than a piece."""
    length = int.from_bytes(frame[:_LENGTH], "big")
    if not 0 < length <= _MOST_HEAD or len(frame) < _LENGTH + length:
        raise ProtocolError("bad_frame", "a frame has a head")
    head, packed = _json(frame[_LENGTH : _LENGTH + length]), frame[_LENGTH + length :]
    if isinstance(head, dict) and head.get("op") in (FILE, LEFT_OUT, ALL_SENT):
        if len(packed) > MOST_FILE_PIECE:
            raise ProtocolError("too_large", f"a piece of a file has at most {MOST_FILE_PIECE} bytes")
        return read_object(ArtifactPiece, head), packed
    piece = read_object(OutputPiece, head)
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
    return json.dumps(_said(stored), separators=(",", ":"))


def stored_of(text: str) -> Stored:
    """Return an answer that came; raises ProtocolError."""
    return read_object(Stored, _json(text.encode()))


def _said(message: OutputPiece | ArtifactPiece | Stored) -> dict[str, Any]:
    """Return a message by field; an older other side knows of a lease's first job alone, and of no number for it."""
    said = asdict(message)
    if said.get("ordinal") == 1:
        del said["ordinal"]
    return said


def _json(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        raise ProtocolError("bad_json", "a head is one JSON object") from None
