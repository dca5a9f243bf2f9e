"""What a library must offer so that features.py can test it. Its errors stay its own: `closed` reads them."""

from collections import deque, namedtuple
from dataclasses import dataclass, field

import report

Declared = namedtuple("Declared", "name messages consumers")

# What Inbox.next gives when the broker cancelled the consumer.
CANCELLED = object()


@dataclass
class Message:
    body: bytes
    properties: dict
    tag: int
    redelivered: bool
    exchange: str
    routing_key: str
    # What is left in the queue: only of `get`.
    count: int | None = None
    # Reply code and text: only of a returned message.
    returned: tuple | None = None


@dataclass
class Inbox:
    """The deliveries of one consumer, in order of arrival. The library's callback puts them in `waiting`."""

    connection: object
    tag: str = ""
    waiting: deque = field(default_factory=deque)

    def next(self, limit_s=report.WAIT_LIMIT_S):
        report.eventually("a delivery", lambda: self.waiting, limit_s, lambda: self.connection.wait(0.02))
        return self.waiting.popleft()

    def nothing(self, for_s=0.3):
        self.connection.wait(for_s)
        report.equal("deliveries waiting", [], [getattr(message, "body", "cancelled") for message in self.waiting])


class Library:
    """
    mechanisms       SASL mechanisms that it has beside PLAIN
    unable           feature → why the library cannot do it
    recovers         whether connect(recover=True) restores connection, topology and consumers by itself
    headers          a header value of each kind that it can write
    no_properties     properties that it cannot write
    always            properties that it writes without being asked
    reopens_channels  whether a connection goes on after a channel with a consumer was closed
    tells_unknown_vhost  whether its exception has the code and text for that
    loses_close  whether a reset while it answers the broker's close hides what that said
    thread_per_connection  whether each thread needs a connection of its own

    connect(user, password, vhost, mechanism, heartbeat, recover, tls) gives a connection with
        channel() close() is_open() wait(seconds) product() events (list of "blocked", "unblocked")
        wait_lost(limit_s): waits until the library noticed that it is closed; gives the error that it has about that
    and its channel()
        close() exchange_declare(name, type, durable, auto_delete, internal, arguments) exchange_passive(name)
        exchange_delete(name, if_unused) exchange_bind(to, source, key, arguments) exchange_unbind(same)
        queue_declare(name, durable, exclusive, auto_delete, arguments) → Declared, queue_passive(name) → Declared
        queue_bind(queue, exchange, key, arguments) queue_unbind(same) queue_purge(queue) → n
        queue_delete(queue, if_unused, if_empty) → n
        qos(count) consume(queue, tag, no_ack, exclusive) → Inbox, cancel(tag) get(queue) → Message or None
        ack(tag, multiple) nack(tag, requeue, multiple) reject(tag, requeue)
        publish(exchange, key, body, properties, mandatory)
        confirm(): from then on publish gives "ack", "nack", or the returned Message
        publish_many(exchange, key, bodies, properties): all in flight at once, then waits for all confirms
        tx_select() tx_commit() tx_rollback()
    """

    mechanisms = ()
    unable = {}
    recovers = False
    headers = {}
    no_properties = ()
    always = ()
    loses_close = False
    reopens_channels = True
    tells_unknown_vhost = True
    thread_per_connection = True

    def closed(self, error):
        """The code and text in the library's exception, or None if it carries none."""
        raise NotImplementedError
