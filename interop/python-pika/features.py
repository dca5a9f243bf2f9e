"""The features of ../FEATURES.md with pika's blocking adapter."""

import ssl
import time
from datetime import datetime, timezone
from decimal import Decimal

import pika

import report
from adapter import CANCELLED, Declared, Inbox, Library, Message
from suite import Features
from report import Mismatch

PROPERTIES = ["content_type", "content_encoding", "headers", "delivery_mode", "priority", "correlation_id", "reply_to",
              "expiration", "message_id", "timestamp", "type", "user_id", "app_id", "cluster_id"]

HEADERS = {
    "int8": -100, "int32": 2_000_000_000, "int64": 1 << 40, "negative": -(1 << 40), "decimal": Decimal("123.45"),
    "yes": True, "no": False, "text": "text ✓", "empty": "", "bytes": b"\xff\x00\x01", "time": datetime(2024, 2, 29, 12, tzinfo=timezone.utc),
    "void": None, "table": {"inner": {"deep": 1}, "empty": {}}, "array": [1, "two", [3, None], {"four": True}],
}


def encode(properties):
    values = dict(properties or {})
    if "timestamp" in values:
        values["timestamp"] = int(values["timestamp"].timestamp())
    return pika.BasicProperties(**values)


def decode(properties):
    values = {name: getattr(properties, name) for name in PROPERTIES if getattr(properties, name) is not None}
    if "timestamp" in values:
        values["timestamp"] = datetime.fromtimestamp(values["timestamp"], timezone.utc)
    return values


def message(method, properties, body, **rest):
    return Message(body, decode(properties), getattr(method, "delivery_tag", 0), getattr(method, "redelivered", False),
                   method.exchange, method.routing_key, **rest)


def parameters(user="guest", password="guest", vhost=None, mechanism="PLAIN", heartbeat=0, recover=False, tls=False):
    chosen = pika.URLParameters(report.TLS_URL if tls else report.URL)
    chosen.credentials = pika.PlainCredentials(user, password)
    chosen.virtual_host = vhost or chosen.virtual_host
    chosen.heartbeat = heartbeat
    chosen.client_properties = {"connection_name": "interop", "note": "any"}
    if tls:
        chosen.ssl_options = pika.SSLOptions(ssl.create_default_context(cafile=report.CA_FILE), chosen.host)
    return chosen


def closed(error):
    """pika puts a failed login's close into the text of its exception, everything else into attributes."""
    if isinstance(error, (pika.exceptions.ChannelClosed, pika.exceptions.ConnectionClosed)):
        return error.reply_code, error.reply_text
    for inner in [*error.args, getattr(error, "__cause__", None), getattr(error, "__context__", None)]:
        if isinstance(inner, BaseException) and inner is not error and (found := closed(inner)):
            return found
        if isinstance(inner, str) and "ConnectionClosedByBroker: (" in inner:
            code, text = inner.split("ConnectionClosedByBroker: (", 1)[1].split(") ", 1)
            return int(code), text.strip("'\"")
    return None


class Pika(Library):
    unable = {}
    headers = HEADERS

    def connect(self, **options):
        return Connection(pika.BlockingConnection(parameters(**options)))

    def closed(self, error):
        return closed(error)

    def provoke(self, channel, queue):
        # No method of the adapter publishes with immediate; its protocol layer can.
        publish = pika.spec.Basic.Publish(exchange="", routing_key=queue, immediate=True)
        channel.opened._impl._send_method(publish, (pika.BasicProperties(), b"now"))


class Connection:
    def __init__(self, opened):
        self.opened = opened
        self.events = []
        opened.add_on_connection_blocked_callback(lambda *_: self.events.append("blocked"))
        opened.add_on_connection_unblocked_callback(lambda *_: self.events.append("unblocked"))

    def channel(self):
        return Channel(self, self.opened.channel())

    def close(self):
        self.opened.close()

    def is_open(self):
        return self.opened.is_open

    def wait(self, seconds):
        self.opened.process_data_events(time_limit=seconds)

    def product(self):
        return self.opened._impl.server_properties["product"]

    def wait_lost(self, limit_s):
        deadline = time.monotonic() + limit_s
        try:
            while time.monotonic() < deadline:
                self.opened.process_data_events(time_limit=0.2)
        except pika.exceptions.AMQPConnectionError as error:
            return error
        raise Mismatch(f"expected the library to notice that its connection is lost within {limit_s} s")


class Channel:
    def __init__(self, connection, opened):
        self.connection, self.opened = connection, opened
        self.confirming = False
        self.inboxes = {}
        opened.add_on_cancel_callback(lambda frame: self.inboxes[frame.method.consumer_tag].waiting.append(CANCELLED))

    def close(self):
        self.opened.close()

    def exchange_declare(self, name, kind, durable=False, auto_delete=False, internal=False, arguments=None):
        self.opened.exchange_declare(name, kind, durable=durable, auto_delete=auto_delete, internal=internal, arguments=arguments)

    def exchange_passive(self, name):
        self.opened.exchange_declare(name, passive=True)

    def exchange_delete(self, name, if_unused=False):
        self.opened.exchange_delete(name, if_unused)

    def exchange_bind(self, to, source, key, arguments=None):
        self.opened.exchange_bind(to, source, key, arguments)

    def exchange_unbind(self, to, source, key, arguments=None):
        self.opened.exchange_unbind(to, source, key, arguments)

    def queue_declare(self, name, durable=False, exclusive=False, auto_delete=False, arguments=None, passive=False):
        ok = self.opened.queue_declare(name, passive, durable, exclusive, auto_delete, arguments).method
        return Declared(ok.queue, ok.message_count, ok.consumer_count)

    def queue_passive(self, name):
        return self.queue_declare(name, passive=True)

    def queue_bind(self, queue, exchange, key, arguments=None):
        self.opened.queue_bind(queue, exchange, key, arguments)

    def queue_unbind(self, queue, exchange, key, arguments=None):
        self.opened.queue_unbind(queue, exchange, key, arguments)

    def queue_purge(self, queue):
        return self.opened.queue_purge(queue).method.message_count

    def queue_delete(self, queue, if_unused=False, if_empty=False):
        return self.opened.queue_delete(queue, if_unused, if_empty).method.message_count

    def qos(self, count):
        try:
            self.opened.basic_qos(prefetch_count=count)
        except pika.exceptions.ChannelWrongStateError:
            # It was closed while nobody called it; the reason is not part of this exception.
            raise self.opened._closing_reason from None
        return True

    def consume(self, queue, tag=None, no_ack=False, exclusive=False):
        inbox = Inbox(self.connection)
        inbox.tag = self.opened.basic_consume(queue, lambda _, *got: inbox.waiting.append(message(*got)), no_ack, exclusive, tag)
        self.inboxes[inbox.tag] = inbox
        return inbox

    def cancel(self, tag):
        self.opened.basic_cancel(tag)

    def get(self, queue):
        method, properties, body = self.opened.basic_get(queue)
        return method and message(method, properties, body, count=method.message_count)

    def ack(self, tag, multiple=False):
        self.opened.basic_ack(tag, multiple)

    def nack(self, tag, requeue=True, multiple=False):
        self.opened.basic_nack(tag, multiple, requeue)

    def reject(self, tag, requeue=True):
        self.opened.basic_reject(tag, requeue)

    def confirm(self):
        self.opened.confirm_delivery()
        self.confirming = True

    def publish(self, exchange, key, body, properties=None, mandatory=False):
        try:
            self.opened.basic_publish(exchange, key, body, encode(properties), mandatory)
        except pika.exceptions.UnroutableError as error:
            [back] = error.messages
            return message(back.method, back.properties, back.body, returned=(back.method.reply_code, back.method.reply_text))
        except pika.exceptions.NackError:
            return "nack"
        return "ack" if self.confirming else None

    def publish_many(self, exchange, key, bodies, properties=None):
        # This adapter waits for each confirm; interop.py has the asyncio adapter send them all first.
        for body in bodies:
            self.publish(exchange, key, body, properties)

    def tx_select(self):
        self.opened.tx_select()

    def tx_commit(self):
        self.opened.tx_commit()

    def tx_rollback(self):
        self.opened.tx_rollback()


if __name__ == "__main__":
    Features(Pika()).run()
