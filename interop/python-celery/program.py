"""Celery: a worker of its own, and what its users do with it."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import report
from report import RUN, Mismatch, control, equal, eventually

FOLDER = tempfile.mkdtemp(prefix="interop-celery-")
os.environ["INTEROP_PREFIX"] = RUN
os.environ["INTEROP_FOLDER"] = FOLDER

import tasks  # noqa: E402  (it reads the two)
from celery import chord, group  # noqa: E402

app = tasks.app
WAIT_S = 20


def start_worker(name, *options):
    log = open(f"{FOLDER}/{name}.log", "ab")
    return subprocess.Popen([sys.executable, "-B", "-m", "celery", "-A", "tasks", "worker", "--pool", "threads", "--concurrency", "1", "-l", "WARNING",
                             "-n", f"{name}@interop", *options], stdout=log, stderr=log, stdin=subprocess.DEVNULL)


def notes():
    file = Path(FOLDER) / "notes"
    return file.read_text().split() if file.exists() else []


def started():
    eventually("the worker's answer to a ping", lambda: app.control.ping(timeout=0.5), WAIT_S)


def results():
    equal("result", 5, tasks.add.delay(2, 3).get(timeout=WAIT_S))
    error = tasks.fails.delay()
    try:
        error.get(timeout=WAIT_S)
    except ValueError as raised:
        equal("error", "as it should", str(raised))
    else:
        raise Mismatch("expected the task's error")
    equal("group", [3, 7], group(tasks.add.s(1, 2), tasks.add.s(3, 4)).apply_async().get(timeout=WAIT_S))


def retries():
    equal("retries", 2, tasks.third_time.delay().get(timeout=WAIT_S))


def eta():
    since = time.monotonic()
    tasks.noted.apply_async(["later"], countdown=1.5)
    eventually("the task with an ETA", lambda: "later" in notes(), WAIT_S)
    if time.monotonic() - since < 1.4:
        raise Mismatch("the task ran before its time")


def chords():
    equal("chord", 9, chord((tasks.add.s(n, n) for n in (1, 2)), tasks.total.s()).apply_async().get(timeout=WAIT_S) + 3)


def priorities():
    # The one thread is busy, with one message prefetched, while these gather.
    tasks.noted.apply_async(["busy", 1.5], queue=f"{RUN}.urgent", priority=5)
    time.sleep(0.5)
    for priority in (1, 2, 9, 5):
        tasks.noted.apply_async([f"p{priority}"], queue=f"{RUN}.urgent", priority=priority)
    eventually("all four", lambda: {"p1", "p2", "p5", "p9"} <= set(notes()), WAIT_S)
    order = [name for name in notes() if name.startswith("p")]
    # The first to come was prefetched.
    equal("by priority", ["p9", "p5", "p2"], [name for name in order if name != "p1"])


def remote_control():
    inspect = app.control.inspect(timeout=5)
    equal("registered", True, "tasks.add" in next(iter(inspect.registered().values())))
    queues = {queue["name"] for queue in next(iter(inspect.active_queues().values()))}
    equal("queues", {f"{RUN}.celery", f"{RUN}.urgent"}, queues)
    [answer] = app.control.rate_limit("tasks.add", "1000/s", reply=True, timeout=5)
    equal("rate limit", "new rate limit set successfully", next(iter(answer.values()))["ok"])
    revoked = tasks.noted.apply_async(["revoked"], countdown=1)
    revoked.revoke()
    time.sleep(1.8)
    equal("revoked", False, "revoked" in notes())


def events():
    seen = []
    with app.connection_for_read() as connection:
        receiver = app.events.Receiver(connection, handlers={"*": lambda event: seen.append(event["type"])})
        with receiver.consumer_context() as (_, _, _):
            tasks.add.delay(1, 1)
            deadline = time.monotonic() + WAIT_S
            while not {"task-received", "task-started", "task-succeeded"} <= set(seen) and time.monotonic() < deadline:
                try:
                    connection.drain_events(timeout=1)
                except TimeoutError:
                    pass
    equal("events", set(), {"task-received", "task-started", "task-succeeded"} - set(seen))


def lost_broker(command):
    def feature():
        tasks.noted.apply_async([f"{command}-1", 2])
        waiting = [tasks.noted.delay(f"{command}-{n}") for n in (2, 3)]
        time.sleep(0.7)
        control(command)
        # Not yet acked, confirmed: they are there, and the worker comes back for them by itself.
        eventually("the tasks from before", lambda: {f"{command}-{n}" for n in (1, 2, 3)} <= set(notes()), 30)
        equal("result afterwards", 3, tasks.add.delay(1, 2).get(timeout=WAIT_S))
        del waiting
    return feature


def clean_up():
    with app.connection_for_write() as connection:
        channel = connection.default_channel
        for name in (f"{RUN}.celery", f"{RUN}.urgent"):
            channel.queue_delete(name)
            channel.exchange_delete(name)
        for name in (f"{RUN}.pidbox.pidbox", f"{RUN}.ev", f"reply.{RUN}.pidbox.pidbox"):
            channel.exchange_delete(name)


worker = start_worker("worker")
try:
    started()
    report.run({
        "results": results, "retries": retries, "eta": eta, "chord": chords, "priorities": priorities,
        "remote-control": remote_control, "events": events, "restart": lost_broker("restart"), "kill": lost_broker("kill"),
        "clean-up": lambda: (worker.send_signal(signal.SIGTERM), worker.wait(20), clean_up()),
    })
except Mismatch as mismatch:
    print(f"fail worker: {mismatch}", Path(f"{FOLDER}/worker.log").read_text()[-2000:])
finally:
    worker.kill()
