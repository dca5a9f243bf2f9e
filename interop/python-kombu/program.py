"""kombu: producers and consumers with its own ideas (serializers, compression, pools, ensure, mixins)."""

import socket
import threading
import time

import kombu
from kombu.mixins import ConsumerMixin
from kombu.pools import producers
from kombu.simple import SimpleQueue

import report
from report import RUN, WAIT_LIMIT_S, Mismatch, control, equal, eventually


def connect(**options):
    return kombu.Connection(report.URL, transport_options={"confirm_publish": True}, **options)


def queue(role, **options):
    exchange = kombu.Exchange(f"{RUN}.{role}", "direct", durable=True)
    return kombu.Queue(f"{RUN}.{role}", exchange, routing_key=role, durable=True, **options)


def delete(*queues):
    with connect() as connection:
        for one in queues:
            bound = one(connection.default_channel)
            bound.delete()
            bound.exchange.delete()


def drain(connection, done, limit_s=WAIT_LIMIT_S):
    deadline = time.monotonic() + limit_s
    while not done():
        if time.monotonic() > deadline:
            raise Mismatch(f"expected messages within {limit_s} s, got nothing")
        try:
            connection.drain_events(timeout=0.2)
        except socket.timeout:
            pass


def serializers():
    target = queue("serializers")
    got = []
    with connect() as connection:
        producer = connection.Producer()
        for serializer in ("json", "pickle", "raw"):
            body = b"raw bytes" if serializer == "raw" else {"n": [1, 2.5, None, "ä"]}
            producer.publish(body, exchange=target.exchange, routing_key=target.routing_key, declare=[target], serializer=serializer,
                             compression="zlib" if serializer == "json" else None, headers={"serializer": serializer}, priority=3)

        def arrived(body, message):
            got.append((message.headers["serializer"], body))
            message.ack()
        with connection.Consumer(target, callbacks=[arrived], accept=["json", "pickle", "application/data"]):
            drain(connection, lambda: len(got) >= 3)
    for serializer, body in got:
        equal(serializer, b"raw bytes" if serializer == "raw" else {"n": [1, 2.5, None, "ä"]}, bytes(body) if serializer == "raw" else body)
    delete(target)


def acks():
    target = queue("acks")
    seen = []
    with connect() as connection:
        connection.Producer().publish("one", exchange=target.exchange, routing_key=target.routing_key, declare=[target])

        def arrived(body, message):
            seen.append(message.delivery_info["redelivered"])
            message.requeue() if len(seen) == 1 else message.reject()
        with connection.Consumer(target, callbacks=[arrived], prefetch_count=1):
            drain(connection, lambda: len(seen) == 2)
        equal("redelivered", [False, True], seen)
        equal("left", 0, target(connection.default_channel).queue_declare(passive=True).message_count)
    delete(target)


def simple_queue():
    with connect() as connection:
        simple = SimpleQueue(connection, f"{RUN}.simple")
        for n in range(3):
            simple.put({"n": n})
        eventually("three messages", lambda: simple.qsize() == 3)
        for n in range(3):
            message = simple.get(timeout=WAIT_LIMIT_S)
            equal("payload", {"n": n}, message.payload)
            message.ack()
        try:
            simple.get(block=False)
        except simple.Empty:
            pass
        else:
            raise Mismatch("expected an empty queue")
        # Deleted under its consumer, the queue's cancel would be raised at the next read.
        simple.close()
        connection.default_channel.queue_delete(f"{RUN}.simple")
        connection.default_channel.exchange_delete(f"{RUN}.simple")


def pools():
    target = queue("pools")
    with connect() as connection:
        target(connection.default_channel).declare()

        def work(number):
            for n in range(20):
                with producers[connection].acquire(block=True, timeout=WAIT_LIMIT_S) as producer:
                    producer.publish(f"{number} {n}", exchange=target.exchange, routing_key=target.routing_key)
        report.in_threads(10, work, 30)
        equal("published by ten threads", 200, target(connection.default_channel).queue_declare(passive=True).message_count)
    kombu.pools.reset()
    delete(target)


def returns():
    came_back = []
    with connect() as connection:
        producer = connection.Producer(on_return=lambda error, exchange, key, message: came_back.append((error.reply_code, key)))
        producer.publish("lost", exchange="", routing_key=f"{RUN}.nowhere", mandatory=True)
        drain(connection, lambda: came_back, 2) if not came_back else None
    equal("returned", [(312, f"{RUN}.nowhere")], came_back)


class Worker(ConsumerMixin):
    def __init__(self, connection, target):
        self.connection, self.target, self.got = connection, target, []

    def get_consumers(self, Consumer, channel):
        return [Consumer(self.target, callbacks=[self.arrived], prefetch_count=10)]

    def arrived(self, body, message):
        self.got.append(body)
        message.ack()


def lost_broker(command):
    def feature():
        target = queue(command)
        with connect(heartbeat=2) as consuming, connect() as publishing:
            worker = Worker(consuming, target)
            threading.Thread(target=worker.run, daemon=True).start()
            producer = publishing.Producer(auto_declare=True)
            policy = {"max_retries": 20, "interval_start": 0.2, "interval_max": 0.5}
            producer.publish("before", exchange=target.exchange, routing_key=target.routing_key, declare=[target], retry=True, retry_policy=policy)
            eventually("the first message", lambda: worker.got == ["before"])
            control(command)
            producer.publish("after", exchange=target.exchange, routing_key=target.routing_key, retry=True, retry_policy=policy)
            eventually("the message after the broker came back", lambda: "after" in worker.got, 30)
            worker.should_stop = True
        delete(target)
    return feature


report.run({"serializers": serializers, "acks": acks, "simple-queue": simple_queue, "pools": pools, "returns": returns,
            "restart": lost_broker("restart"), "kill": lost_broker("kill")})
