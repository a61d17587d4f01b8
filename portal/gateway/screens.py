"""What a lease's terminals show, for those whom its holder lets watch: the last of it, and each piece as it comes.

Watchers of a lease see its front terminal, the one that was typed in last. They are shown copies: whoever does not keep
up is let go, and nobody else waits for them.
"""

from __future__ import annotations

from typing import Final, Protocol

# A screen full of colours has some 10 KiB.
TAIL: Final = 16 * 1024


class ScreenViewer(Protocol):
    """Somebody who watches the terminals of a lease."""

    def show(self, screen: Screen) -> None:
        """Begin anew with another terminal."""

    def feed(self, data: bytes) -> None:
        """Take what the terminal in front shows; never waits."""

    def resize(self, rows: int, columns: int) -> None:
        """Take the size of the holder's window."""

    def end(self, code: str) -> None:
        """Let go."""


class Screen:
    """One open terminal of a lease."""

    def __init__(self, lease: tuple[int, int], rows: int, columns: int) -> None:
        self.lease = lease
        self.rows, self.columns = rows, columns
        self._last = b""

    @property
    def tail(self) -> bytes:
        """Return the last that was shown, from the beginning of a line on."""
        return self._last if len(self._last) < TAIL else self._last.partition(b"\n")[2]

    def open(self) -> None:
        """Come to the front."""
        _screens.setdefault(self.lease, []).append(self)
        self._come_forward()

    def drew(self, data: bytes) -> None:
        """Remember what was shown, and show it to those who watch."""
        # A copy: the piece itself may be four times as long.
        self._last = data[-TAIL:] if len(data) >= TAIL else (self._last + data)[-TAIL:]
        if self.lease in _viewers and front(self.lease) is self:
            for viewer in list(_viewers[self.lease]):
                viewer.feed(data)

    def used(self) -> None:
        """Come to the front, as it is typed in."""
        if front(self.lease) is not self and self in _screens.get(self.lease, ()):
            _screens[self.lease].remove(self)
            _screens[self.lease].append(self)
            self._come_forward()

    def resize(self, rows: int, columns: int) -> None:
        """Take the size of the holder's window."""
        self.rows, self.columns = rows, columns
        if front(self.lease) is self:
            for viewer in list(_viewers.get(self.lease, ())):
                viewer.resize(rows, columns)

    def leave(self) -> None:
        """Be closed: the terminal behind it comes to the front. Safe to repeat."""
        was_in_front = front(self.lease) is self
        others = [one for one in _screens.get(self.lease, ()) if one is not self]
        if others:
            _screens[self.lease] = others
        else:
            _screens.pop(self.lease, None)
        if not was_in_front:
            return
        if others:
            others[-1]._come_forward()
        else:
            for viewer in list(_viewers.get(self.lease, ())):
                viewer.end("not_shown")

    def _come_forward(self) -> None:
        for viewer in list(_viewers.get(self.lease, ())):
            viewer.show(self)


_screens: dict[tuple[int, int], list[Screen]] = {}
_viewers: dict[tuple[int, int], set[ScreenViewer]] = {}


def front(lease: tuple[int, int]) -> Screen | None:
    """Return the terminal in front of a lease (its id and generation), None where none is open at this gateway."""
    found = _screens.get(lease)
    return found[-1] if found else None


def watch(lease: tuple[int, int], viewer: ScreenViewer) -> None:
    """Show the lease's terminals to somebody from now on."""
    _viewers.setdefault(lease, set()).add(viewer)


def unwatch(lease: tuple[int, int], viewer: ScreenViewer) -> None:
    """Show them no more. Safe to repeat."""
    left = _viewers.get(lease, set()) - {viewer}
    if left:
        _viewers[lease] = left
    else:
        _viewers.pop(lease, None)


def count_viewers(lease: tuple[int, int]) -> int:
    """Return how many watch."""
    return len(_viewers.get(lease, ()))
