"""The features of ../FEATURES.md with pika's asyncio adapter: callbacks on a loop in a thread of its own."""

import asyncio
import threading
import time
from concurrent.futures import Future

import pika
from pika.adapters.asyncio_connection import AsyncioConnection

import features
import report
from adapter import CANCELLED, Declared, Inbox
from features import encode, message, parameters
from suite import Features

LOOP = asyncio.new_event_loop()
threading.Thread(target=LOOP.run_forever, daemon=True).start()


def call(start, broken=None, limit_s=30):
    """`start(done)` runs in the loop and has `done` called with the answer; `broken` may end the wait with an error."""
    answer = Future()

    def done(result=None):
        if not answer.done():
            answer.set_result(result)

    def fail(error):
        if not answer.done():
            answer.set_exception(error)

    def begin():
        try:
            start(done)
        except Exception as error:
            fail(error)

    if broken is not None:
        broken.append(fail)
    LOOP.call_soon_threadsafe(begin)
    try:
        return answer.result(limit_s)
    finally:
        if broken is not None:
            broken.remove(fail)


class PikaAsyncio(features.Pika):
    thread_per_connection = False

    def connect(self, **options):
        return Connection(**options)

    def provoke(self, channel, queue):
        publish = pika.spec.Basic.Publish(exchange="", routing_key=queue, immediate=True)
        call(lambda done: done(channel.opened._send_method(publish, (pika.BasicProperties(), b"now"))))


class Connection:
    def __init__(self, **options):
        self.events, self.ended, self.waiting = [], [], []
        opened = Future()

        def failed(_, error):
            opened.set_exception(error)

        def make():
            self.opened = AsyncioConnection(parameters(**options), on_open_callback=opened.set_result, on_open_error_callback=failed,
                                            on_close_callback=self.closed, custom_ioloop=LOOP)
            self.opened.add_on_connection_blocked_callback(lambda *_: self.events.append("blocked"))
            self.opened.add_on_connection_unblocked_callback(lambda *_: self.events.append("unblocked"))

        LOOP.call_soon_threadsafe(make)
        opened.result(15)

    def closed(self, _, error):
        self.ended.append(error)
        for fail in list(self.waiting):
            fail(error)

    def channel(self):
        return Channel(self)

    def close(self):
        call(lambda done: done(self.opened.close()))
        report.eventually("the connection's end", lambda: self.opened.is_closed)

    def is_open(self):
        return self.opened.is_open

    def wait(self, seconds):
        time.sleep(seconds)

    def product(self):
        return self.opened.server_properties["product"]

    def wait_lost(self, limit_s):
        return report.eventually("the library to notice that its connection is lost", lambda: self.ended, limit_s)[0]


class Channel(features.Channel):
    """Its methods are those of the blocking adapter, with the answer given to a callback."""

    def __init__(self, connection):
        self.connection, self.waiting, self.ended = connection, connection.waiting, []
        self.confirming, self.published = False, 0
        self.settled, self.returned, self.inboxes = {}, [], {}
        self.opened = self.call(lambda done: connection.opened.channel(on_open_callback=done))
        self.opened.add_on_close_callback(self.closed)
        self.opened.add_on_cancel_callback(lambda frame: self.inboxes[frame.method.consumer_tag].waiting.append(CANCELLED))
        self.opened.add_on_return_callback(lambda _, method, properties, body: self.returned.append(
            message(method, properties, body, returned=(method.reply_code, method.reply_text))))

    def closed(self, _, error):
        self.ended.append(error)
        for fail in list(self.waiting):
            fail(error)

    def call(self, start):
        if self.ended:
            raise self.ended[0]
        return call(start, self.waiting)

    def close(self):
        self.call(lambda done: done(self.opened.close()))

    def exchange_declare(self, name, kind, durable=False, auto_delete=False, internal=False, arguments=None):
        self.call(lambda done: self.opened.exchange_declare(name, kind, durable=durable, auto_delete=auto_delete, internal=internal,
                                                            arguments=arguments, callback=done))

    def exchange_passive(self, name):
        self.call(lambda done: self.opened.exchange_declare(name, passive=True, callback=done))

    def exchange_delete(self, name, if_unused=False):
        self.call(lambda done: self.opened.exchange_delete(name, if_unused, callback=done))

    def exchange_bind(self, to, source, key, arguments=None):
        self.call(lambda done: self.opened.exchange_bind(to, source, key, arguments, callback=done))

    def exchange_unbind(self, to, source, key, arguments=None):
        self.call(lambda done: self.opened.exchange_unbind(to, source, key, arguments, callback=done))

    def queue_declare(self, name, durable=False, exclusive=False, auto_delete=False, arguments=None, passive=False):
        ok = self.call(lambda done: self.opened.queue_declare(name, passive, durable, exclusive, auto_delete, arguments, callback=done)).method
        return Declared(ok.queue, ok.message_count, ok.consumer_count)

    def queue_bind(self, queue, exchange, key, arguments=None):
        self.call(lambda done: self.opened.queue_bind(queue, exchange, key, arguments, callback=done))

    def queue_unbind(self, queue, exchange, key, arguments=None):
        self.call(lambda done: self.opened.queue_unbind(queue, exchange, key, arguments, callback=done))

    def queue_purge(self, queue):
        return self.call(lambda done: self.opened.queue_purge(queue, callback=done)).method.message_count

    def queue_delete(self, queue, if_unused=False, if_empty=False):
        return self.call(lambda done: self.opened.queue_delete(queue, if_unused, if_empty, callback=done)).method.message_count

    def qos(self, count):
        self.call(lambda done: self.opened.basic_qos(prefetch_count=count, callback=done))
        return True

    def consume(self, queue, tag=None, no_ack=False, exclusive=False):
        inbox = Inbox(self.connection)

        def start(done):
            inbox.tag = self.opened.basic_consume(queue, lambda _, *got: inbox.waiting.append(message(*got)), no_ack, exclusive, tag, callback=done)
            self.inboxes[inbox.tag] = inbox
        self.call(start)
        return inbox

    def cancel(self, tag):
        self.call(lambda done: self.opened.basic_cancel(tag, callback=done))

    def get(self, queue):
        def start(done):
            self.opened.add_callback(lambda _: done(None), [pika.spec.Basic.GetEmpty])
            self.opened.basic_get(queue, lambda _, *got: done(got))
        got = self.call(start)
        return got and message(*got, count=got[0].message_count)

    def ack(self, tag, multiple=False):
        self.call(lambda done: done(self.opened.basic_ack(tag, multiple)))

    def nack(self, tag, requeue=True, multiple=False):
        self.call(lambda done: done(self.opened.basic_nack(tag, multiple, requeue)))

    def reject(self, tag, requeue=True):
        self.call(lambda done: done(self.opened.basic_reject(tag, requeue)))

    def confirm(self):
        self.call(lambda done: self.opened.confirm_delivery(self.confirmed, callback=done))
        self.confirming = True

    def confirmed(self, frame):
        method = frame.method
        first = max(self.settled, default=0) + 1 if method.multiple else method.delivery_tag
        for tag in range(first, method.delivery_tag + 1):
            self.settled[tag] = "ack" if isinstance(method, pika.spec.Basic.Ack) else "nack"

    def send(self, exchange, key, body, properties=None, mandatory=False):
        self.call(lambda done: done(self.opened.basic_publish(exchange, key, body, encode(properties), mandatory)))
        self.published += 1
        return self.published

    def publish(self, exchange, key, body, properties=None, mandatory=False):
        tag = self.send(exchange, key, body, properties, mandatory)
        if not self.confirming:
            return None
        outcome = report.eventually("a confirm", lambda: self.ended or self.settled.pop(tag, None), pause=lambda: time.sleep(0.001))
        if self.ended:
            raise self.ended[0]
        return self.returned.pop() if self.returned else outcome

    def publish_many(self, exchange, key, bodies, properties=None):
        tags = [self.send(exchange, key, body, properties) for body in bodies]
        report.eventually("all confirms", lambda: all(self.settled.get(tag) == "ack" for tag in tags))

    def tx_select(self):
        self.call(lambda done: self.opened.tx_select(callback=done))

    def tx_commit(self):
        self.call(lambda done: self.opened.tx_commit(callback=done))

    def tx_rollback(self):
        self.call(lambda done: self.opened.tx_rollback(callback=done))


if __name__ == "__main__":
    Features(PikaAsyncio()).run()
