"""What the patterns stand on: connections, checks with messages, time limits, clean-up."""

import os
import secrets
import signal
import sys
import time
from collections import deque, namedtuple
from contextlib import contextmanager

import pika

PATTERN_LIMIT_S = 40
WAIT_LIMIT_S = 10

URL = os.environ.get("AMQP_URL", "amqp://guest:guest@127.0.0.1:5672/")
PARAMETERS = pika.URLParameters(URL)
VHOST = PARAMETERS.virtual_host
RUN = f"interop.pika.{secrets.token_hex(4)}"

Delivery = namedtuple("Delivery", "method properties body")


class Mismatch(Exception):
    """A check failed; the text says what was expected and what came."""


def equal(what, expected, got):
    if expected != got:
        raise Mismatch(f"{what}: expected {expected!r}, got {got!r}")


def connect(parameters=PARAMETERS):
    return pika.BlockingConnection(parameters)


@contextmanager
def connection():
    opened = connect()
    try:
        yield opened
    finally:
        if opened.is_open:
            opened.close()


class Names:
    """Names that no other run uses, and what has to be deleted at the end."""

    def __init__(self, pattern):
        self.prefix = f"{RUN}.{pattern}"
        self.queues, self.exchanges = [], []

    def queue(self, role):
        self.queues.append(f"{self.prefix}.{role}")
        return self.queues[-1]

    def exchange(self, role):
        self.exchanges.append(f"{self.prefix}.{role}")
        return self.exchanges[-1]

    def delete_all(self):
        with connection() as conn:
            channel = conn.channel()
            for queue in self.queues:
                channel.queue_delete(queue)
            for exchange in self.exchanges:
                channel.exchange_delete(exchange)


class Inbox:
    """The deliveries of one consumer, in order of arrival."""

    def __init__(self, channel, queue, auto_ack=False):
        self.channel = channel
        self.waiting = deque()
        self.tag = channel.basic_consume(queue, self._arrived, auto_ack=auto_ack)

    def _arrived(self, _channel, method, properties, body):
        equal("consumer tag", self.tag, method.consumer_tag)
        self.waiting.append(Delivery(method, properties, body))

    def take(self):
        wait_until("a delivery", self.channel, lambda: self.waiting)
        return self.waiting.popleft()

    def ack(self, delivery):
        self.channel.basic_ack(delivery.method.delivery_tag)


def wait_until(what, channel, arrived):
    deadline = time.monotonic() + WAIT_LIMIT_S
    while not arrived():
        if time.monotonic() > deadline:
            raise Mismatch(f"expected {what} within {WAIT_LIMIT_S} s, got nothing")
        channel.connection.process_data_events(time_limit=0.1)


def publish_confirmed(conn, queue, bodies, properties=None):
    """Sends to a queue and returns once the broker has it, so that counts are exact afterwards."""
    channel = conn.channel()
    channel.confirm_delivery()
    for body in bodies:
        channel.basic_publish("", queue, body, properties, mandatory=True)
    channel.close()


def ready_count(conn, queue):
    channel = conn.channel()
    ok = channel.queue_declare(queue, passive=True).method
    channel.close()
    return ok.message_count


def refused(conn, code, text, action):
    """`action` must close its channel, and only that, with this code and text."""
    channel = conn.channel()
    try:
        action(channel)
        # Publish and ack have no reply: the error shows at the next call that has one.
        channel.basic_qos(prefetch_count=1)
    except pika.exceptions.ChannelClosedByBroker as closed:
        equal("channel exception", (code, text), (closed.reply_code, closed.reply_text))
    else:
        raise Mismatch(f"channel exception: expected {code} {text}, got none")


def attempt(step):
    """Runs a step within the time limit; gives what went wrong, or None."""
    signal.alarm(PATTERN_LIMIT_S)
    try:
        step()
    except Mismatch as mismatch:
        return str(mismatch)
    except Exception as error:  # the library's own errors are findings too
        return f"expected no exception, got {error!r}"
    finally:
        signal.alarm(0)


def main(patterns):
    def out_of_time(_signal, _frame):
        raise Mismatch(f"expected an end within {PATTERN_LIMIT_S} s, got none")

    signal.signal(signal.SIGALRM, out_of_time)
    failed = False
    for name, pattern in patterns.items():
        names = Names(name)
        wrong = attempt(lambda: pattern(names))
        left_over = attempt(names.delete_all)
        wrong = wrong or left_over
        failed = failed or wrong is not None
        print(f"ok {name}" if wrong is None else f"fail {name}: {wrong}", flush=True)
    sys.exit(1 if failed else 0)
