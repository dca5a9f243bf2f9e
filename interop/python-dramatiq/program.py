"""Dramatiq: actors with retries, delays, priorities and dead letters, over its own RabbitMQ broker class."""

import threading
import time

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker

import report
from report import RUN, control, equal, eventually

QUEUE = f"{RUN}.dramatiq"
broker = RabbitmqBroker(url=report.URL, confirm_delivery=True, max_priority=10)
dramatiq.set_broker(broker)
done, tries, lock = [], [], threading.Lock()


@dramatiq.actor(queue_name=QUEUE, max_retries=3, min_backoff=200, max_backoff=400)
def twice(name):
    with lock:
        tries.append(name)
        if tries.count(name) < 2:
            raise RuntimeError("once more")
        done.append(name)


@dramatiq.actor(queue_name=QUEUE, max_retries=0)
def fails(name):
    with lock:
        tries.append(name)
    raise RuntimeError("as it should")


@dramatiq.actor(queue_name=QUEUE)
def plain(name, pause=0):
    time.sleep(pause)
    with lock:
        done.append(name)


def actors():
    for n in range(50):
        plain.send(f"plain {n}")
    eventually("50 actors", lambda: sum(name.startswith("plain ") for name in done) == 50, 20)


def retries():
    twice.send("retried")
    eventually("the second try", lambda: "retried" in done, 20)
    equal("tries", 2, tries.count("retried"))


def delay():
    since = time.monotonic()
    plain.send_with_options(args=("delayed",), delay=1200)
    eventually("the delayed actor", lambda: "delayed" in done, 20)
    equal("not before its time", True, time.monotonic() - since >= 1.1)


def dead_letters():
    fails.send("dead")
    eventually("its try", lambda: "dead" in tries, 20)
    eventually("a message in the dead-letter queue", lambda: broker.get_queue_message_counts(QUEUE)[2] == 1, 20)


def priorities():
    for n in range(3):
        broker.enqueue(plain.message(f"low {n}"), delay=None)
    broker.enqueue(plain.message_with_options(args=("high",), broker_priority=9))
    eventually("all", lambda: {"low 0", "low 1", "low 2", "high"} <= set(done), 20)


def lost_broker(command):
    def feature():
        plain.send(f"{command} before", 1.0)
        time.sleep(0.3)
        control(command)

        def send():
            try:
                plain.send(f"{command} after")
                return True
            except Exception as error:
                print("not yet:", repr(error))
        eventually("a confirm", send, 30, lambda: time.sleep(0.5))
        eventually("both", lambda: {f"{command} before", f"{command} after"} <= set(done), 40)
    return feature


def clean_up():
    worker.stop()
    channel = broker.channel
    for name in (QUEUE, f"{QUEUE}.DQ", f"{QUEUE}.XQ"):
        channel.queue_delete(name)


worker = dramatiq.Worker(broker, worker_threads=4, worker_timeout=100)
worker.start()
report.run({"actors": actors, "retries": retries, "delay": delay, "dead-letters": dead_letters, "priorities": priorities,
            "restart": lost_broker("restart"), "kill": lost_broker("kill"), "clean-up": clean_up})
