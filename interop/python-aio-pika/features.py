"""The features of ../FEATURES.md with aio-pika, and with its robust connection where recovery is asked for."""

import asyncio
import ssl
import threading
import time
from datetime import datetime, timezone
from decimal import Decimal

import aio_pika
import aiormq
from aio_pika.exceptions import DeliveryError, PublishError
from yarl import URL

import report
from adapter import CANCELLED, Declared, Inbox, Library, Message
from report import Mismatch
from suite import Features

LOOP = asyncio.new_event_loop()
threading.Thread(target=LOOP.run_forever, daemon=True).start()


def call(coroutine, limit_s=30):
    """Runs it in the library's loop, which goes on between the calls as in a program of its own."""
    return asyncio.run_coroutine_threadsafe(coroutine, LOOP).result(limit_s)


def encode(body, properties):
    values = dict(properties or {})
    if "expiration" in values:
        values["expiration"] = int(values["expiration"]) / 1000
    return aio_pika.Message(body, **values)


def decoded(message, **rest):
    names = ("content_type", "content_encoding", "headers", "delivery_mode", "priority", "correlation_id", "reply_to", "expiration",
             "message_id", "timestamp", "type", "user_id", "app_id")
    properties = {name: getattr(message, name) for name in names}
    if properties["expiration"] is not None:
        properties["expiration"] = str(int(properties["expiration"] * 1000))
    return Message(message.body, properties, message.delivery_tag, message.redelivered, message.exchange, message.routing_key, **rest)


class AioPika(Library):
    recovers = True
    thread_per_connection = False
    no_properties = ("cluster_id",)
    # Priority 0, an id and delivery mode 1 are written when nothing is said.
    always = ("priority", "delivery_mode", "message_id")
    tells_unknown_vhost = False
    headers = {
        "int8": -100, "uint8": 200, "int16": -30000, "uint16": 60000, "int32": -2_000_000_000, "uint32": 4_000_000_000, "int64": 1 << 40,
        "float": 0.5, "decimal": Decimal("123.45"), "yes": True, "no": False, "text": "text ✓", "empty": "",
        "bytes": bytearray(b"\xff\x00\x01"), "time": datetime(2024, 2, 29, 12, tzinfo=timezone.utc), "void": None,
        "table": {"inner": {"deep": 1}, "empty": {}}, "array": [1, "two", [0.5, None], {"four": True}],
    }

    def connect(self, user="guest", password="guest", vhost=None, mechanism="PLAIN", heartbeat=0, recover=False, tls=False):
        url = URL(report.TLS_URL if tls else report.URL).with_user(user).with_password(password).update_query(heartbeat=heartbeat, name="interop")
        if vhost:
            url = url.with_path(f"/{vhost}", keep_query=True)
        options = {"ssl_context": ssl.create_default_context(cafile=report.CA_FILE)} if tls else {}
        if recover:
            return Connection(call(aio_pika.connect_robust(url, reconnect_interval=0.3, timeout=10, **options)))
        return Connection(call(aio_pika.connect(url, timeout=10, **options)))

    def closed(self, error):
        """Connection errors carry code and text as arguments, channel errors their text only: the class is the code."""
        if isinstance(error, aiormq.exceptions.ProbableAuthenticationError):
            return 403, str(error.args[0])
        codes = {"ChannelAccessRefused": 403, "ChannelNotFoundEntity": 404, "ChannelLockedResource": 405, "ChannelPreconditionFailed": 406,
                 "ConnectionNotAllowed": 530, "ConnectionNotImplemented": 540}
        code = codes.get(type(error).__name__)
        if isinstance(error, aiormq.exceptions.ConnectionClosed) and len(error.args) >= 2:
            return error.args[0], error.args[1]
        return code and (code, str(error.args[0]))

    def provoke(self, channel, queue):
        async def publish():
            under = await channel.opened.get_underlay_channel()
            await under.basic_publish(b"now", routing_key=queue, immediate=True)
        call(publish())


class Connection:
    def __init__(self, opened):
        self.opened = opened
        self.seen = []
        self.ended = []
        opened.close_callbacks.add(lambda _, error: self.ended.append(error))

    @property
    def events(self):
        # The library says so only by a wait that does not end.
        async def blocked():
            try:
                await asyncio.wait_for(self.opened.transport.connection.ready(), 0.05)
                return False
            except asyncio.TimeoutError:
                return True
        if call(blocked()):
            self.seen.append("blocked")
        elif self.seen:
            self.seen.append("unblocked")
        return self.seen

    def channel(self):
        return Channel(self, publisher_confirms=False)

    def close(self):
        call(self.opened.close())

    def is_open(self):
        return not self.opened.is_closed

    def wait(self, seconds):
        time.sleep(seconds)

    def product(self):
        return self.opened.transport.connection.server_properties["product"]

    def wait_lost(self, limit_s):
        return report.eventually("the library to notice that its connection is lost", lambda: self.ended, limit_s)[0]


class Channel:
    def __init__(self, connection, **options):
        self.connection = connection
        self.confirming = False
        self.messages = {}
        self.inboxes = {}
        self.transaction = None
        self.open(**options)

    def open(self, **options):
        async def open():
            return await self.connection.opened.channel(**options)
        self.opened = call(open())
        self.ended = []
        self.opened.close_callbacks.add(lambda _, error: self.ended.append(error))

    def close(self):
        call(self.opened.close())

    def _exchange(self, name):
        return call(self.opened.get_exchange(name, ensure=False)) if name else self.opened.default_exchange

    def _queue(self, name):
        return call(self.opened.get_queue(name, ensure=False))

    def exchange_declare(self, name, kind, durable=False, auto_delete=False, internal=False, arguments=None):
        call(self.opened.declare_exchange(name, kind, durable=durable, auto_delete=auto_delete, internal=internal, arguments=arguments))

    def exchange_passive(self, name):
        call(self.opened.get_exchange(name))

    def exchange_delete(self, name, if_unused=False):
        call(self.opened.exchange_delete(name, if_unused=if_unused))

    def exchange_bind(self, to, source, key, arguments=None):
        call(self._exchange(to).bind(source, key, arguments=arguments))

    def exchange_unbind(self, to, source, key, arguments=None):
        call(self._exchange(to).unbind(source, key, arguments=arguments))

    def queue_declare(self, name, durable=False, exclusive=False, auto_delete=False, arguments=None, passive=False):
        queue = call(self.opened.declare_queue(name or None, durable=durable, exclusive=exclusive, auto_delete=auto_delete, arguments=arguments, passive=passive))
        ok = queue.declaration_result
        return Declared(queue.name, ok.message_count, ok.consumer_count)

    def queue_passive(self, name):
        return self.queue_declare(name, passive=True)

    def queue_bind(self, queue, exchange, key, arguments=None):
        call(self._queue(queue).bind(exchange, key, arguments=arguments))

    def queue_unbind(self, queue, exchange, key, arguments=None):
        call(self._queue(queue).unbind(exchange, key, arguments=arguments))

    def queue_purge(self, queue):
        return call(self._queue(queue).purge()).message_count

    def queue_delete(self, queue, if_unused=False, if_empty=False):
        return call(self.opened.queue_delete(queue, if_unused=if_unused, if_empty=if_empty)).message_count

    def qos(self, count):
        # A call that crosses the broker's close of the channel only times out.
        time.sleep(0.05)
        if self.ended:
            raise self.ended[0]
        call(self.opened.set_qos(prefetch_count=count))
        return True

    def consume(self, queue, tag=None, no_ack=False, exclusive=False):
        inbox = Inbox(self.connection)

        async def arrived(message):
            self.messages[message.delivery_tag] = message
            inbox.waiting.append(decoded(message))

        async def consume():
            under = await self.opened.get_underlay_channel()
            under.on_consumer_cancel_callbacks.add(lambda frame: frame.consumer_tag == inbox.tag and inbox.waiting.append(CANCELLED))
            # A declared queue, so that a robust connection knows that it has a consumer to restore.
            found = await self.opened.declare_queue(queue, passive=True)
            return await found.consume(arrived, no_ack=no_ack, exclusive=exclusive, consumer_tag=tag)

        inbox.tag = call(consume())
        return inbox

    def cancel(self, tag):
        call(self._queue("any").cancel(tag))

    def get(self, queue):
        message = call(self._queue(queue).get(fail=False))
        if message is None:
            return None
        self.messages[message.delivery_tag] = message
        return decoded(message, count=message.message_count)

    def ack(self, tag, multiple=False):
        if tag in self.messages:
            return call(self.messages[tag].ack(multiple))

        async def ack():
            await (await self.opened.get_underlay_channel()).basic_ack(tag, multiple)
        call(ack())

    def nack(self, tag, requeue=True, multiple=False):
        call(self.messages[tag].nack(multiple, requeue))

    def reject(self, tag, requeue=True):
        call(self.messages[tag].reject(requeue))

    def confirm(self):
        # A channel has confirms from its opening, or never.
        self.open(publisher_confirms=True, on_return_raises=True)
        self.confirming = True

    def publish(self, exchange, key, body, properties=None, mandatory=False):
        try:
            call(self._exchange(exchange).publish(encode(body, properties), key, mandatory=mandatory))
        except PublishError as error:
            message, back = error.message, error.message.delivery
            header = message.header.properties
            return Message(message.body, {"correlation_id": header.correlation_id}, 0, False, back.exchange, back.routing_key,
                           returned=(back.reply_code, back.reply_text))
        except DeliveryError:
            return "nack"
        return "ack" if self.confirming else None

    def publish_many(self, exchange, key, bodies, properties=None):
        async def publish():
            to = await self.opened.get_exchange(exchange, ensure=False) if exchange else self.opened.default_exchange
            await asyncio.gather(*(to.publish(encode(body, properties), key) for body in bodies))
        call(publish())

    def tx_select(self):
        self.transaction = self.opened.transaction()
        call(self.transaction.select())

    def tx_commit(self):
        call(self.transaction.commit())

    def tx_rollback(self):
        call(self.transaction.rollback())
        # The broker has the acks back: the library would refuse to ack those messages again.
        self.messages.clear()


if __name__ == "__main__":
    Features(AioPika()).run()
