"""How a Celery worker gets over a broker that did not take an acknowledgement."""

from __future__ import annotations

from celery.worker import request
from kombu.asynchronous import get_event_loop


class Request(request.Request):
    """A message on its way through a worker, which connects anew where the broker does not take its answer.

    Celery only logs a failed acknowledgement (https://github.com/celery/celery/issues/2415). Where the connection
    itself lives on, as when the broker answers late, the message counts as under way for ever, and a worker that
    takes one at a time never takes another. Over a new connection the message comes again; tasks are safe to repeat.
    """

    def acknowledge(self) -> None:
        """Tell the broker that the message is done with."""
        super().acknowledge()
        self._check_settled()

    def reject(self, requeue: bool = False) -> None:
        """Tell the broker that the message was not taken."""
        super().reject(requeue)
        self._check_settled()

    def _check_settled(self) -> None:
        loop = get_event_loop()
        if loop is not None and not self.message.acknowledged:
            # Raised here it would only be logged by the pool that calls us; raised in the loop it ends the connection.
            loop.call_soon(_connect_anew, str(self.message.delivery_tag))  # type: ignore[no-untyped-call]


def _connect_anew(tag: str) -> None:
    raise ConnectionError(f"The broker did not take the acknowledgement of {tag}.")
