"""The Celery application that the worker of program.py runs."""

import os
import time

from celery import Celery
from kombu import Exchange, Queue

PREFIX = os.environ["INTEROP_PREFIX"]
FOLDER = os.environ["INTEROP_FOLDER"]

app = Celery("interop", broker=os.environ["AMQP_URL"], backend=os.environ.get("INTEROP_BACKEND", f"file://{FOLDER}"))
app.conf.update(
    task_default_queue=f"{PREFIX}.celery",
    task_queues=[
        Queue(f"{PREFIX}.celery", Exchange(f"{PREFIX}.celery", durable=True), routing_key=f"{PREFIX}.celery", durable=True),
        Queue(f"{PREFIX}.urgent", Exchange(f"{PREFIX}.urgent", durable=True), routing_key=f"{PREFIX}.urgent", durable=True,
              queue_arguments={"x-max-priority": 10}),
    ],
    task_default_exchange=f"{PREFIX}.celery",
    task_default_routing_key=f"{PREFIX}.celery",
    broker_connection_retry_on_startup=True,
    broker_transport_options={"confirm_publish": True},
    worker_prefetch_multiplier=1,
    worker_send_task_events=True,
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    control_exchange=f"{PREFIX}.pidbox",
    event_exchange=f"{PREFIX}.ev",
    event_queue_prefix=f"{PREFIX}.event",
    # RabbitMQ 4.3 refuses transient queues that are not exclusive.
    control_queue_durable=False,
)


def note(name):
    with open(f"{FOLDER}/notes", "a") as notes:
        notes.write(f"{name}\n")


@app.task
def add(x, y):
    return x + y


@app.task
def total(numbers):
    return sum(numbers)


@app.task(bind=True, max_retries=3, default_retry_delay=0.2)
def third_time(self):
    if self.request.retries < 2:
        raise self.retry(countdown=0.2)
    return self.request.retries


@app.task
def noted(name, pause=0):
    time.sleep(pause)
    note(name)
    return name


@app.task
def fails():
    raise ValueError("as it should")
