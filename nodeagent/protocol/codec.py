"""Messages to text and back. ``decode`` believes nothing; ``encode`` leaves out what equals its default.

Text that is used has a form (forms.py) and is refused without it; text that is only shown is blanked: what a driver
printed over several lines must not cost its node the connection.
"""

from __future__ import annotations

import json
import math
import types
from collections.abc import Callable, Hashable
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import lru_cache
from typing import Any, NoReturn, TypeVar, cast, get_args, get_origin, get_type_hints

from nodeagent.protocol import forms, limits, messages
from nodeagent.protocol.messages import MAX_FRAME_BYTES, VERSION, Message
from nodeagent.protocol.variables import may_set

T = TypeVar("T")
Reader = Callable[[Any], Any]
Writer = Callable[[Any], Any]


class ProtocolError(Exception):
    """A frame that cannot be believed: ``code`` is stable, ``detail`` names the field and the reason."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail


def encode(message: Message) -> str:
    """Return the frame of a message. Raises ValueError for NaN or infinity: send None for unknown."""
    name = type(message).__name__
    body = {"v": VERSION, "type": name.lower(), **_WRITERS[name](message)}
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def decode(frame: str | bytes) -> Message:
    """Return the message in a frame, or raise ProtocolError; nothing is guessed or ignored."""
    body = _parse(_text(frame))
    if not isinstance(body, dict):
        raise ProtocolError("not_an_object", "a frame is one JSON object")
    version = body.pop("v", None)
    if type(version) is not int or version != VERSION:
        raise ProtocolError("unknown_version", f"version {VERSION} is spoken here")
    name = body.pop("type", None)
    reader = _READERS.get(name) if isinstance(name, str) else None
    if reader is None:
        raise ProtocolError("unknown_type", "no such message in this version")
    return cast(Message, reader(body))


def read_object(cls: type[T], value: object) -> T:
    """Return a decoded JSON object as one of the classes of this protocol, read as strictly as a frame.

    Raises ProtocolError.
    """
    return cast(T, _object_reader(cast(Hashable, cls))(value))


@lru_cache(maxsize=64)
def _object_reader(cls: Hashable) -> Reader:
    return _read_object(cast(type, cls))


def _text(frame: str | bytes) -> str:
    if len(frame) > MAX_FRAME_BYTES:
        raise ProtocolError("too_large", f"a frame has at most {MAX_FRAME_BYTES} bytes")
    if isinstance(frame, bytes):
        try:
            return frame.decode()
        except UnicodeDecodeError:
            raise ProtocolError("bad_text", "a frame is UTF-8") from None
    return frame


def _parse(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_not_finite)
    except RecursionError:
        raise ProtocolError("too_deep", "a frame is nested at most a few levels") from None
    except ValueError:
        raise ProtocolError("bad_json", "a frame is one JSON object") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ProtocolError("duplicate_key", "a key stands twice in one object")
    return found


def _not_finite(word: str) -> NoReturn:
    raise ProtocolError("not_finite", f"{word} is not a figure; null means unknown")


def _read_text(where: str, longest: int, form: forms.Form | None, may_lack: bool = True) -> Reader:
    def read(value: Any) -> str:
        if type(value) is not str:
            raise ProtocolError("wrong_type", f"{where} is text")
        if len(value) > longest:
            raise ProtocolError("too_long", f"{where} has at most {longest} characters")
        if "\x00" in value or (not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value)):
            raise ProtocolError("bad_text", f"{where} holds a character that cannot be stored")
        if form is None:
            return forms.blanked(value)
        if not (form(value) or (may_lack and not value)):
            raise ProtocolError("bad_name", f"{where} holds characters that have no place in it")
        return value

    return read


def _read_word(where: str, words: tuple[str, ...]) -> Reader:
    def read(value: Any) -> str:
        if type(value) is not str:
            raise ProtocolError("wrong_type", f"{where} is text")
        if value not in words:
            raise ProtocolError("unknown_word", f"{where} is one of {', '.join(words)}")
        return value

    return read


def _read_whole(where: str, low: int, high: int) -> Reader:
    def read(value: Any) -> int:
        if type(value) is not int:
            raise ProtocolError("wrong_type", f"{where} is a whole number")
        if not low <= value <= high:
            raise ProtocolError("out_of_range", f"{where} lies between {low} and {high}")
        return value

    return read


def _read_real(where: str, low: float, high: float) -> Reader:
    def read(value: Any) -> float:
        if type(value) is not float and type(value) is not int:
            raise ProtocolError("wrong_type", f"{where} is a number")
        if not low <= value <= high or not math.isfinite(value):
            raise ProtocolError("out_of_range", f"{where} lies between {low:g} and {high:g}")
        return float(value)

    return read


def _read_flag(where: str) -> Reader:
    def read(value: Any) -> bool:
        if type(value) is not bool:
            raise ProtocolError("wrong_type", f"{where} is true or false")
        return value

    return read


def _read_optional(inner: Reader) -> Reader:
    return lambda value: None if value is None else inner(value)


def _read_many(where: str, inner: Reader, most: int) -> Reader:
    def read(value: Any) -> tuple[Any, ...]:
        if type(value) is not list:
            raise ProtocolError("wrong_type", f"{where} is a list")
        if len(value) > most:
            raise ProtocolError("too_many", f"{where} has at most {most} entries")
        return tuple([inner(item) for item in value])

    return read


def _read_map(where: str, most: int) -> Reader:
    read_key = _read_text(where, 200, forms.is_name)
    read_value = _read_text(where, limits.LONGEST_IN_MAP, None)

    def read(value: Any) -> dict[str, str]:
        if type(value) is not dict:
            raise ProtocolError("wrong_type", f"{where} is an object")
        if len(value) > most:
            raise ProtocolError("too_many", f"{where} has at most {most} entries")
        return {read_key(key): read_value(item) for key, item in value.items()}

    return read


def _read_variables(where: str, most: int) -> Reader:
    def read(value: Any) -> dict[str, str]:
        if type(value) is not dict:
            raise ProtocolError("wrong_type", f"{where} is an object")
        if len(value) > most:
            raise ProtocolError("too_many", f"{where} has at most {most} entries")
        for name, item in value.items():
            if not may_set(name, item):
                raise ProtocolError("bad_variable", f"{where} names a variable that no node may set so")
        return dict(value)

    return read


def _reader(hint: Any, owner: str, name: str, may_lack: bool = False) -> Reader:
    """Build the strict reader of one field from its annotation; ``may_lack``: "" stands for none."""
    where = f"{owner}.{name}"
    if get_origin(hint) is types.UnionType:
        (inner,) = [arg for arg in get_args(hint) if arg is not type(None)]
        return _read_optional(_reader(inner, owner, name, may_lack))
    if get_origin(hint) is tuple:
        most = limits.bound(limits.MANY, owner, name, limits.MANY_DEFAULT)
        return _read_many(where, _reader(get_args(hint)[0], owner, name), most)
    if get_origin(hint) is dict:
        most = limits.bound(limits.MANY, owner, name, limits.MANY_DEFAULT)
        return _read_variables(where, most) if where == limits.VARIABLES else _read_map(where, most)
    if is_dataclass(hint):
        return _read_object(cast(type, hint))
    return _scalar_reader(hint, owner, name, may_lack)


def _scalar_reader(hint: Any, owner: str, name: str, may_lack: bool) -> Reader:
    where = f"{owner}.{name}"
    if hint is str and where in limits.WORDS:
        return _read_word(where, limits.WORDS[where])
    if hint is str:
        form = limits.bound(forms.FORMS, owner, name, None)
        return _read_text(where, limits.bound(limits.TEXT, owner, name, limits.TEXT_DEFAULT), form, may_lack)
    if hint is bool:
        return _read_flag(where)
    if hint is int:
        return _read_whole(where, *limits.bound(limits.WHOLE, owner, name, limits.WHOLE_DEFAULT))
    if hint is float:
        return _read_real(where, *limits.bound(limits.REAL, owner, name, limits.REAL_DEFAULT))
    raise TypeError(f"{where}: the codec has no reader for {hint!r}")


def _is_required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _read_object(cls: type) -> Reader:
    hints = get_type_hints(cls)
    readers = {f.name: _reader(hints[f.name], cls.__name__, f.name, f.default == "") for f in fields(cls)}
    required = frozenset(f.name for f in fields(cls) if _is_required(f))

    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise ProtocolError("wrong_type", f"{cls.__name__} is an object")
        if not readers.keys() >= value.keys():
            raise ProtocolError("unknown_field", f"{cls.__name__} has no such field in version {VERSION}")
        if not value.keys() >= required:
            missing = min(required - value.keys())
            raise ProtocolError("missing_field", f"{cls.__name__}.{missing} is missing")
        return cls(**{name: readers[name](item) for name, item in value.items()})

    return read


def _writer(hint: Any) -> Writer | None:
    """Return how to write values of a type; None where JSON takes them as they are."""
    if get_origin(hint) is types.UnionType:
        (within,) = [arg for arg in get_args(hint) if arg is not type(None)]
        return _write_optional(_writer(within))
    if get_origin(hint) is tuple:
        inner = _writer(get_args(hint)[0])
        return list if inner is None else (lambda values: [inner(value) for value in values])
    if is_dataclass(hint):
        return _write_object(cast(type, hint))
    return None


def _write_optional(inner: Writer | None) -> Writer | None:
    return None if inner is None else (lambda value: None if value is None else inner(value))


def _default(field: Field[Any]) -> Any:
    if field.default_factory is not MISSING:
        return field.default_factory()
    return field.default


def _write_object(cls: type) -> Writer:
    hints = get_type_hints(cls)
    plan = [(f.name, _default(f), _writer(hints[f.name])) for f in fields(cls)]

    def write(message: Any) -> dict[str, Any]:
        body = {}
        for name, default, inner in plan:
            value = getattr(message, name)
            if value != default or default is MISSING:
                body[name] = value if inner is None else inner(value)
        return body

    return write


_CLASSES: tuple[type, ...] = get_args(messages.Message)
_READERS: dict[str, Reader] = {cls.__name__.lower(): _read_object(cls) for cls in _CLASSES}
_WRITERS: dict[str, Writer] = {cls.__name__: _write_object(cls) for cls in _CLASSES}
