"""The features of ../FEATURES.md with py-amqp, the library under Celery and kombu."""

import socket
import ssl
import time
from collections import deque
from datetime import datetime, timezone
from decimal import Decimal
from urllib.parse import unquote, urlsplit

import amqp

import report
from adapter import CANCELLED, Declared, Inbox, Library, Message
from report import Mismatch
from suite import Features

RENAMED = {"headers": "application_headers"}


def encode(body, properties):
    values = {RENAMED.get(name, name): value for name, value in (properties or {}).items()}
    if "timestamp" in values:
        values["timestamp"] = int(values["timestamp"].timestamp())
    return amqp.Message(body, **values)


def decoded(message, **rest):
    back = {theirs: ours for ours, theirs in RENAMED.items()}
    properties = {back.get(name, name): value for name, value in message.properties.items()}
    if "timestamp" in properties:
        properties["timestamp"] = datetime.fromtimestamp(properties["timestamp"], timezone.utc)
    info = message.delivery_info
    body = message.body if isinstance(message.body, bytes) else message.body.encode()
    return Message(body, properties, info.get("delivery_tag", 0), info.get("redelivered", False), info["exchange"], info["routing_key"], **rest)


class PyAmqp(Library):
    mechanisms = ("AMQPLAIN",)
    loses_close = True
    headers = {
        "int32": -2_000_000_000, "int64": 1 << 40, "double": 0.1, "decimal": Decimal("123.45"), "yes": True, "no": False, "text": "text ✓",
        "empty": "", "time": datetime(2024, 2, 29, 12), "void": None, "table": {"inner": {"deep": 1}, "empty": {}},
        "array": [1, "two", [0.1, None], {"four": True}],
    }

    def connect(self, user="guest", password="guest", vhost=None, mechanism="PLAIN", heartbeat=0, recover=False, tls=False):
        url = urlsplit(report.TLS_URL if tls else report.URL)
        connection = Connection()
        connection.opened = amqp.Connection(
            f"{url.hostname}:{url.port}", user, password, login_method=mechanism, virtual_host=vhost or unquote(url.path[1:]),
            heartbeat=heartbeat, connect_timeout=10, on_blocked=lambda reason: connection.events.append("blocked"),
            on_unblocked=lambda: connection.events.append("unblocked"),
            ssl={"ca_certs": report.CA_FILE, "cert_reqs": ssl.CERT_REQUIRED, "server_hostname": url.hostname} if tls else False)
        connection.opened.connect()
        return connection

    def closed(self, error):
        return (error.reply_code, error.reply_text) if isinstance(error, amqp.AMQPError) else None

    def provoke(self, channel, queue):
        channel.opened.basic_publish(amqp.Message(b"now"), routing_key=queue, immediate=True)


class Connection:
    def __init__(self):
        self.events = []
        self.channel_error = None

    def channel(self):
        return Channel(self, self.opened.channel())

    def close(self):
        self.opened.close()

    def is_open(self):
        return bool(self.opened.connected)

    def wait(self, seconds):
        deadline = time.monotonic() + seconds
        while True:
            self.opened.heartbeat_tick()
            try:
                self.opened.drain_events(timeout=max(0.001, min(0.2, deadline - time.monotonic())))
            except socket.timeout:
                pass
            except amqp.ChannelError as error:
                # The library raises a channel's error at whoever reads.
                self.channel_error = error
            if time.monotonic() >= deadline:
                return

    def product(self):
        return self.opened.server_properties["product"]

    def wait_lost(self, limit_s):
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            try:
                self.wait(0.1)
            except (amqp.ConnectionError, OSError) as error:
                return error
        raise Mismatch(f"expected the library to notice that its connection is lost within {limit_s} s")


class Channel:
    def __init__(self, connection, opened):
        self.connection, self.opened = connection, opened
        self.confirms, self.returned = deque(), deque()
        self.confirming = False
        opened.events["basic_ack"].add(lambda tag, multiple: self.confirms.append(("ack", tag, multiple)))
        opened.events["basic_nack"].add(lambda tag, multiple: self.confirms.append(("nack", tag, multiple)))
        opened.events["basic_return"].add(self.came_back)
        self.published = 0

    def came_back(self, error, exchange, key, message):
        message.delivery_info = {"exchange": exchange, "routing_key": key}
        self.returned.append(decoded(message, returned=(error.reply_code, error.reply_text)))

    def close(self):
        self.opened.close()

    def exchange_declare(self, name, kind, durable=False, auto_delete=False, internal=False, arguments=None):
        # The library has no argument for internal.
        self.opened.exchange_declare(name, kind, durable=durable, auto_delete=auto_delete, arguments=arguments)

    def exchange_passive(self, name):
        self.opened.exchange_declare(name, "", passive=True)

    def exchange_delete(self, name, if_unused=False):
        self.opened.exchange_delete(name, if_unused)

    def exchange_bind(self, to, source, key, arguments=None):
        self.opened.exchange_bind(to, source, key, arguments=arguments)

    def exchange_unbind(self, to, source, key, arguments=None):
        self.opened.exchange_unbind(to, source, key, arguments=arguments)

    def queue_declare(self, name, durable=False, exclusive=False, auto_delete=False, arguments=None, passive=False):
        return Declared(*self.opened.queue_declare(name, passive, durable, exclusive, auto_delete, arguments=arguments))

    def queue_passive(self, name):
        return self.queue_declare(name, passive=True)

    def queue_bind(self, queue, exchange, key, arguments=None):
        self.opened.queue_bind(queue, exchange, key, arguments=arguments)

    def queue_unbind(self, queue, exchange, key, arguments=None):
        self.opened.queue_unbind(queue, exchange, key, arguments=arguments)

    def queue_purge(self, queue):
        return self.opened.queue_purge(queue)

    def queue_delete(self, queue, if_unused=False, if_empty=False):
        return self.opened.queue_delete(queue, if_unused, if_empty)

    def qos(self, count):
        # It opens a channel that the broker closed again by itself, after it raised the error at whoever read.
        if error := self.connection.channel_error:
            self.connection.channel_error = None
            raise error
        self.opened.basic_qos(0, count, False)
        return True

    def consume(self, queue, tag=None, no_ack=False, exclusive=False):
        inbox = Inbox(self.connection)
        ok = self.opened.basic_consume(queue, tag or "", no_ack=no_ack, exclusive=exclusive, callback=lambda got: inbox.waiting.append(decoded(got)),
                                       on_cancel=lambda _: inbox.waiting.append(CANCELLED))
        inbox.tag = ok if isinstance(ok, str) else ok.consumer_tag
        return inbox

    def cancel(self, tag):
        self.opened.basic_cancel(tag)

    def get(self, queue):
        got = self.opened.basic_get(queue)
        return got and decoded(got, count=got.delivery_info["message_count"])

    def ack(self, tag, multiple=False):
        self.opened.basic_ack(tag, multiple)

    def nack(self, tag, requeue=True, multiple=False):
        # It has no basic.nack.
        self.opened.basic_reject(tag, requeue)

    def reject(self, tag, requeue=True):
        self.opened.basic_reject(tag, requeue)

    def confirm(self):
        self.opened.confirm_select()
        self.confirming = True

    def publish(self, exchange, key, body, properties=None, mandatory=False):
        self.opened.basic_publish(encode(body, properties), exchange, key, mandatory)
        if not self.confirming:
            return None
        self.published += 1
        outcome = self.settled(self.published)
        return self.returned.popleft() if self.returned else outcome

    def settled(self, up_to):
        return report.eventually(
            f"the confirm of publish {up_to}", pause=lambda: self.connection.wait(0.02),
            condition=lambda: next((kind for kind, tag, multiple in self.confirms if tag == up_to or multiple and tag > up_to), None))

    def publish_many(self, exchange, key, bodies, properties=None):
        for body in bodies:
            self.opened.basic_publish(encode(body, properties), exchange, key)
            self.published += 1
        for tag in range(self.published - len(bodies) + 1, self.published + 1):
            report.equal(f"confirm {tag}", "ack", self.settled(tag))

    def tx_select(self):
        self.opened.tx_select()

    def tx_commit(self):
        self.opened.tx_commit()

    def tx_rollback(self):
        self.opened.tx_rollback()


if __name__ == "__main__":
    Features(PyAmqp()).run()
