"""The features of ../FEATURES.md with AMQPStorm."""

import time
from datetime import datetime, timezone
from decimal import Decimal
from urllib.parse import unquote, urlsplit

import amqpstorm
from amqpstorm.exception import AMQPChannelError, AMQPConnectionError, AMQPError, AMQPMessageError

import report
from adapter import CANCELLED, Declared, Inbox, Library, Message
from report import Mismatch
from suite import Features

# Its names of the properties where they differ from the specification's.
RENAMED = {"type": "message_type"}


def encode(properties):
    return {RENAMED.get(name, name): value for name, value in (properties or {}).items()}


def decode(properties):
    back = {theirs: ours for ours, theirs in RENAMED.items()}
    return {back.get(name, name): value for name, value in properties.items() if value is not None}


def decoded(message, **rest):
    method = message.method
    return Message(message._body, decode(message._properties), method["delivery_tag"], method["redelivered"], method["exchange"],
                   method["routing_key"], **rest)


class Storm(Library):
    no_properties = ("cluster_id",)
    # Put on every message.
    always = ("content_encoding",)
    # It goes on to use a channel that was closed under a consumer, RabbitMQ ends the connection for that too.
    reopens_channels = False
    # Returned messages are an exception with code and text; the message itself is not given.
    headers = {
        "int8": -100, "uint8": 200, "int16": -30000, "uint16": 60000, "int32": -2_000_000_000, "uint32": 4_000_000_000, "int64": 1 << 40,
        "float": 0.5, "decimal": Decimal("123.45"), "yes": True, "no": False, "text": "text ✓", "empty": "",
        "bytes": bytearray(b"\xff\x00\x01"), "time": datetime(2024, 2, 29, 12, tzinfo=timezone.utc), "void": None,
        "table": {"inner": {"deep": 1}, "empty": {}}, "array": [1, "two", [0.5, None], {"four": True}],
    }

    def connect(self, user="guest", password="guest", vhost=None, mechanism="PLAIN", heartbeat=0, recover=False, tls=False):
        url = urlsplit(report.TLS_URL if tls else report.URL)
        options = {"ssl": True, "ssl_options": {"context": __import__("ssl").create_default_context(cafile=report.CA_FILE),
                                                "server_hostname": url.hostname}} if tls else {}
        # Without heartbeats it does not notice that its broker was killed.
        return Connection(amqpstorm.Connection(url.hostname, user, password, port=url.port, heartbeat=heartbeat or 2, timeout=10,
                                               virtual_host=vhost or unquote(url.path[1:]), **options))

    def closed(self, error):
        if not isinstance(error, AMQPError):
            return None
        text = str(error)
        for before in ("was closed by remote server: ", "Connection was closed by remote server: "):
            text = text.split(before, 1)[-1]
        return error.error_code, text

    def provoke(self, channel, queue):
        try:
            channel.opened.basic.publish(b"now", queue, immediate=True)
        except AMQPError as error:
            print("at the publish:", error)


class Connection:
    def __init__(self, opened):
        self.opened = opened
        self.channels = []
        self.seen = []

    @property
    def events(self):
        blocked = self.opened.is_blocked
        if blocked != (self.seen[-1:] == ["blocked"]) and (blocked or self.seen):
            self.seen.append("blocked" if blocked else "unblocked")
        return self.seen

    def channel(self):
        self.channels.append(Channel(self, self.opened.channel(rpc_timeout=15)))
        return self.channels[-1]

    def close(self):
        self.opened.close()

    def is_open(self):
        return self.opened.is_open

    def wait(self, seconds):
        deadline = time.monotonic() + seconds
        while True:
            for channel in self.channels:
                channel.pump()
            if time.monotonic() >= deadline:
                return
            time.sleep(0.01)

    def product(self):
        return self.opened.server_properties["product"]

    def wait_lost(self, limit_s):
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            try:
                self.opened.check_for_errors()
            except AMQPConnectionError as error:
                return error
            time.sleep(0.02)
        raise Mismatch(f"expected the library to notice that its connection is lost within {limit_s} s")


class Channel:
    def __init__(self, connection, opened):
        self.connection, self.opened = connection, opened
        self.confirming = False
        self.inboxes = {}

    def pump(self):
        if not self.inboxes:
            return
        try:
            self.opened.process_data_events(auto_decode=False)
        except AMQPError:
            # Whoever uses the channel next is told.
            return
        for tag in set(self.inboxes) - set(self.opened.consumer_tags):
            self.inboxes.pop(tag).waiting.append(CANCELLED)

    def close(self):
        self.opened.close()

    def exchange_declare(self, name, kind, durable=False, auto_delete=False, internal=False, arguments=None):
        if internal:
            # The method has no such option.
            arguments = {**(arguments or {}), "note": "not internal"}
        self.opened.exchange.declare(name, kind, False, durable, auto_delete, arguments)

    def exchange_passive(self, name):
        self.opened.exchange.declare(name, passive=True)

    def exchange_delete(self, name, if_unused=False):
        self.opened.exchange.delete(name, if_unused)

    def exchange_bind(self, to, source, key, arguments=None):
        self.opened.exchange.bind(to, source, key, arguments)

    def exchange_unbind(self, to, source, key, arguments=None):
        self.opened.exchange.unbind(to, source, key, arguments)

    def queue_declare(self, name, durable=False, exclusive=False, auto_delete=False, arguments=None, passive=False):
        ok = self.opened.queue.declare(name, passive, durable, exclusive, auto_delete, arguments)
        return Declared(ok["queue"], ok["message_count"], ok["consumer_count"])

    def queue_passive(self, name):
        return self.queue_declare(name, passive=True)

    def queue_bind(self, queue, exchange, key, arguments=None):
        self.opened.queue.bind(queue, exchange, key, arguments)

    def queue_unbind(self, queue, exchange, key, arguments=None):
        self.opened.queue.unbind(queue, exchange, key, arguments)

    def queue_purge(self, queue):
        return self.opened.queue.purge(queue)["message_count"]

    def queue_delete(self, queue, if_unused=False, if_empty=False):
        return self.opened.queue.delete(queue, if_unused, if_empty)["message_count"]

    def qos(self, count):
        self.opened.basic.qos(prefetch_count=count)
        return True

    def consume(self, queue, tag=None, no_ack=False, exclusive=False):
        inbox = Inbox(self.connection)
        inbox.tag = self.opened.basic.consume(lambda got: inbox.waiting.append(decoded(got)), queue, tag or "", exclusive, no_ack)
        self.inboxes[inbox.tag] = inbox
        return inbox

    def cancel(self, tag):
        self.inboxes.pop(tag)
        self.opened.basic.cancel(tag)

    def get(self, queue):
        got = self.opened.basic.get(queue, auto_decode=False)
        return got and decoded(got, count=got.method["message_count"])

    def ack(self, tag, multiple=False):
        self.opened.basic.ack(tag, multiple)

    def nack(self, tag, requeue=True, multiple=False):
        self.opened.basic.nack(tag, multiple, requeue)

    def reject(self, tag, requeue=True):
        self.opened.basic.reject(tag, requeue)

    def confirm(self):
        self.opened.confirm_deliveries()
        self.confirming = True

    def publish(self, exchange, key, body, properties=None, mandatory=False):
        try:
            confirmed = self.opened.basic.publish(body, key, exchange, encode(properties), mandatory)
        except AMQPMessageError as error:
            text = str(error).removeprefix("Message not delivered: ").split(" (")[0]
            return Message(None, {}, 0, False, exchange, key, returned=(error.error_code, text))
        return {True: "ack", False: "nack"}[confirmed] if self.confirming else None

    def publish_many(self, exchange, key, bodies, properties=None):
        # The library waits for each confirm.
        for body in bodies:
            self.publish(exchange, key, body, properties)

    def tx_select(self):
        self.opened.tx.select()

    def tx_commit(self):
        self.opened.tx.commit()

    def tx_rollback(self):
        self.opened.tx.rollback()


if __name__ == "__main__":
    Features(Storm()).run()
