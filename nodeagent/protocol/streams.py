"""Many byte streams on one socket, each with credit of its own. No I/O: both ends feed frames in and take frames out.

A frame is one binary message: one byte for its kind, four for the stream, the rest its body. Streams that the portal
opens have odd numbers, those of the agent even ones. DATA spends credit, WINDOW gives it back once the receiver's
own reader drew the bytes, so what is held here is bounded by window × streams, and one slow reader holds up nobody.
A frame that breaks the rules raises StreamProtocolError: its sender cannot be believed, and the socket ends.
"""

from __future__ import annotations

import enum
import json
import struct
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

WINDOW: Final = 256 * 1024
MOST_PIECE: Final = 32 * 1024
# Sent only to gateways that name the feature; whoever is sent a flood has a quarter of the frames to look at.
LARGE_PIECE: Final = 128 * 1024
MOST_BODY: Final = 4096
MOST_STREAMS: Final = 1024
MOST_NUMBER: Final = 2**32 - 1
# Answers wait here while the other end does not read; whoever causes more of them than this is let go.
MOST_WAITING_WORDS: Final = 16_384
MAX_FRAME_BYTES: Final = 5 + LARGE_PIECE
_HEAD: Final = struct.Struct("!BI")
_COUNT: Final = struct.Struct("!I")


class Kind(enum.IntEnum):
    """What a frame is."""

    OPEN = 1
    OPENED = 2
    DATA = 3
    EOF = 4
    RESET = 5
    WINDOW = 6
    CTL = 7


class StreamProtocolError(Exception):
    """A frame that breaks the rules: ``code`` is stable, ``detail`` names the rule."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Event:
    """What one frame said of one stream.

    ``body`` is the object of OPEN, OPENED, CTL and RESET, ``data`` the bytes of DATA. After RESET, and after EOF in
    both directions, the stream is gone.
    """

    kind: Kind
    stream: int
    data: bytes = b""
    body: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class _Stream:
    """``credit`` is what may still be sent, ``owed`` what was received and not drawn yet, ``drawn`` not told yet."""

    credit: int = 0
    most_credit: int = WINDOW
    window: int = WINDOW
    owed: int = 0
    drawn: int = 0
    is_answered: bool = False
    is_sent_out: bool = False
    is_heard_out: bool = False


class StreamConnection:
    """One end of a socket with streams.

    ``send`` and ``consumed`` never wait: they say how much was taken, and what is to be written lies in
    ``take_frames``.
    """

    def __init__(
        self, *, is_portal: bool, most_streams: int = MOST_STREAMS, most_piece: int = MOST_PIECE
    ) -> None:
        """Begin without streams; the two ends must disagree about ``is_portal``.

        ``most_piece`` is what the other end takes in a frame: at most ``LARGE_PIECE`` bytes.
        """
        self._most_piece = most_piece
        self._next = 1 if is_portal else 2
        self._own_parity = self._next % 2
        self._heard_of = 0
        self._most_streams = most_streams
        self._streams: dict[int, _Stream] = {}
        self._frames: deque[bytes] = deque()
        self._words = 0

    @property
    def streams(self) -> frozenset[int]:
        """Return the streams that are open, asked for ones included."""
        return frozenset(self._streams)

    @property
    def is_waiting(self) -> bool:
        """Say whether frames wait to be written."""
        return bool(self._frames)

    def take_frames(self) -> list[bytes]:
        """Return what is to be written, in order, and forget it."""
        frames, self._words = list(self._frames), 0
        self._frames.clear()
        return frames

    # What this end wants

    def open(self, wish: dict[str, Any], *, window: int = WINDOW) -> int:
        """Ask the other end for a stream and return its number; ``window`` is what it may send ahead.

        Raises StreamProtocolError when all numbers of this socket are spent.
        """
        number = self._next
        if number > MOST_NUMBER:
            raise StreamProtocolError("numbers_spent", "this socket has opened all streams that it can")
        self._next += 2
        self._streams[number] = _Stream(window=window)
        self._say(Kind.OPEN, number, {**wish, "window": window})
        return number

    def accept(self, stream: int, answer: dict[str, Any]) -> None:
        """Answer a stream that the other end asked for; data may flow from now on."""
        found = self._streams[stream]
        found.is_answered = True
        found.credit = found.most_credit
        self._say(Kind.OPENED, stream, answer)

    def credit(self, stream: int) -> int:
        """Return how many bytes may be sent now; none on a stream that is gone, ended or not answered yet."""
        found = self._streams.get(stream)
        return 0 if found is None or found.is_sent_out or not found.is_answered else found.credit

    def send(self, stream: int, data: bytes | memoryview) -> int:
        """Send as much as the credit allows, in pieces; returns how many bytes were taken."""
        found, view = self._streams.get(stream), memoryview(data)
        taken = min(self.credit(stream), len(view))
        for start in range(0, taken, self._most_piece):
            piece = view[start : min(start + self._most_piece, taken)]
            self._frames.append(_HEAD.pack(Kind.DATA, stream) + piece)
        if found is not None:
            found.credit -= taken
        return taken

    def end(self, stream: int) -> None:
        """Send no more bytes on a stream; the other direction goes on. Safe to repeat."""
        found = self._streams.get(stream)
        if found is not None and not found.is_sent_out:
            found.is_sent_out = True
            self._word(_HEAD.pack(Kind.EOF, stream))
            self._forget_ended(stream, found)

    def say(self, stream: int, message: dict[str, Any]) -> None:
        """Send a word beside the bytes, such as a new size; nothing on a stream that is gone."""
        if stream in self._streams:
            self._say(Kind.CTL, stream, message)

    def reset(self, stream: int, code: str, detail: str = "") -> None:
        """End a stream in both directions at once. Safe to repeat."""
        if self._streams.pop(stream, None) is not None:
            self._say(Kind.RESET, stream, {"code": code, "detail": detail[:1000]})

    def consumed(self, stream: int, count: int) -> None:
        """Say that received bytes were drawn; the sender hears of it once half of its window is free."""
        found = self._streams.get(stream)
        if found is None:
            return
        if not 0 <= count <= found.owed:
            raise ValueError(f"{count} bytes drawn of {found.owed}")
        found.owed -= count
        found.drawn += count
        if found.drawn and found.drawn >= found.window // 2 and not found.is_heard_out:
            self._word(_HEAD.pack(Kind.WINDOW, stream) + _COUNT.pack(found.drawn))
            found.drawn = 0

    # What the other end says

    def receive(self, frame: bytes) -> Event | None:
        """Take one frame in; returns what it said, None where it concerns a stream that is gone already.

        Raises StreamProtocolError; nothing more may be fed in then.
        """
        if not _HEAD.size <= len(frame) <= MAX_FRAME_BYTES:
            raise StreamProtocolError("bad_size", f"a frame has {_HEAD.size} to {MAX_FRAME_BYTES} bytes")
        number_of_kind, stream = _HEAD.unpack_from(frame)
        try:
            kind = Kind(number_of_kind)
        except ValueError:
            raise StreamProtocolError("unknown_kind", "no such kind of frame") from None
        body = frame[_HEAD.size :]
        if kind is Kind.OPEN:
            return self._opened_by_other(stream, body)
        found = self._streams.get(stream)
        if found is None:
            self._require_past(stream)
            return None
        if kind is Kind.OPENED:
            return self._answered(stream, found, body)
        if kind is Kind.RESET:
            word = _object(body)
            del self._streams[stream]
            return Event(kind, stream, body=word)
        if not found.is_answered:
            raise StreamProtocolError("not_opened", "a stream carries nothing before it is answered")
        if kind is Kind.DATA:
            return self._received(stream, found, body)
        if kind is Kind.WINDOW:
            return self._given(stream, found, body)
        if kind is Kind.CTL:
            return Event(kind, stream, body=_object(body))
        if body or found.is_heard_out:
            raise StreamProtocolError("second_end", "a direction ends once, and without a body")
        found.is_heard_out = True
        self._forget_ended(stream, found)
        return Event(kind, stream)

    def _opened_by_other(self, stream: int, body: bytes) -> Event | None:
        if stream == 0 or stream % 2 == self._own_parity or stream <= self._heard_of:
            raise StreamProtocolError("bad_number", "streams of one end rise, portal odd, agent even")
        self._heard_of = stream
        wish = _object(body)
        window = wish.pop("window", WINDOW)
        if type(window) is not int or not 1 <= window <= WINDOW:
            raise StreamProtocolError("bad_window", f"a window has 1 to {WINDOW} bytes")
        self._streams[stream] = _Stream(most_credit=window)
        if len(self._streams) > self._most_streams:
            self.reset(stream, "too_many_streams", f"at most {self._most_streams} streams on one socket")
            return None
        return Event(Kind.OPEN, stream, body=wish)

    def _answered(self, stream: int, found: _Stream, body: bytes) -> Event:
        if found.is_answered or stream % 2 != self._own_parity:
            raise StreamProtocolError("not_asked", "only a stream that was asked for is answered, once")
        answer = _object(body)
        found.is_answered = True
        found.credit = WINDOW
        return Event(Kind.OPENED, stream, body=answer)

    def _received(self, stream: int, found: _Stream, data: bytes) -> Event:
        if found.is_heard_out:
            raise StreamProtocolError("after_end", "no bytes follow the end of a direction")
        if found.owed + found.drawn + len(data) > found.window:
            raise StreamProtocolError("over_window", "more bytes than the window has room for")
        found.owed += len(data)
        return Event(Kind.DATA, stream, data=data)

    def _given(self, stream: int, found: _Stream, body: bytes) -> Event:
        if len(body) != _COUNT.size:
            raise StreamProtocolError("bad_size", "a window is four bytes")
        (count,) = _COUNT.unpack(body)
        if count == 0 or found.credit + count > found.most_credit:
            raise StreamProtocolError("over_window", "more room than the window ever had")
        found.credit += count
        return Event(Kind.WINDOW, stream)

    def _require_past(self, stream: int) -> None:
        """Frames cross on the way: those of a stream that is gone mean nothing, those of one to come are a lie."""
        is_own = stream % 2 == self._own_parity
        if stream == 0 or (stream >= self._next if is_own else stream > self._heard_of):
            raise StreamProtocolError("unknown_stream", "this stream was never opened")

    def _forget_ended(self, stream: int, found: _Stream) -> None:
        if found.is_sent_out and found.is_heard_out:
            del self._streams[stream]

    def _say(self, kind: Kind, stream: int, body: dict[str, Any]) -> None:
        text = json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
        if len(text) > MOST_BODY:
            raise ValueError(f"the body of {kind.name} has {len(text)} bytes")
        self._word(_HEAD.pack(kind, stream) + text)

    def _word(self, frame: bytes) -> None:
        self._words += 1
        if self._words > MOST_WAITING_WORDS:
            raise StreamProtocolError("not_reading", "the other end asks on and on and does not read answers")
        self._frames.append(frame)


def _object(body: bytes) -> dict[str, Any]:
    if len(body) > MOST_BODY:
        raise StreamProtocolError("bad_size", f"a body has at most {MOST_BODY} bytes")
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise StreamProtocolError("bad_body", "a body is one JSON object")
    return found
