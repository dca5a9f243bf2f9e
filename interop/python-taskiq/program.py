"""taskiq with taskiq-aio-pika: tasks, delays over a delay queue, priorities, retries, a worker that comes back."""

import asyncio

from taskiq import SimpleRetryMiddleware
from taskiq.api import run_receiver_task
from taskiq_aio_pika import AioPikaBroker
from taskiq_aio_pika.exchange import Exchange
from taskiq_aio_pika.queue import Queue, QueueType

import report
from report import RUN, Mismatch, control, equal

broker = AioPikaBroker(report.URL, exchange=Exchange(name=f"{RUN}.taskiq"), delay_queue=Queue(name=f"{RUN}.delay"),
                       dead_letter_queue=Queue(name=f"{RUN}.dead")).with_queue(
    Queue(name=f"{RUN}.tasks", type=QueueType.CLASSIC, max_priority=10)).with_middlewares(SimpleRetryMiddleware(default_retry_count=3))
done, tries = [], []


@broker.task
async def noted(name: str) -> None:
    done.append(name)


@broker.task(retry_on_error=True)
async def second_time(name: str) -> None:
    tries.append(name)
    if len(tries) < 2:
        raise RuntimeError("once more")
    done.append(name)


async def until(what, condition, limit_s=15):
    deadline = asyncio.get_running_loop().time() + limit_s
    while not condition():
        if asyncio.get_running_loop().time() > deadline:
            raise Mismatch(f"expected {what} within {limit_s} s, got {done} {tries}")
        await asyncio.sleep(0.02)


async def tasks():
    for n in range(30):
        await noted.kiq(f"task {n}")
    await until("30 tasks", lambda: sum(name.startswith("task ") for name in done) == 30)


async def delay():
    since = asyncio.get_running_loop().time()
    await noted.kicker().with_labels(delay=1).kiq("delayed")
    await until("the delayed task", lambda: "delayed" in done)
    equal("not before its time", True, asyncio.get_running_loop().time() - since >= 0.9)


async def retries():
    await second_time.kiq("retried")
    await until("the second try", lambda: "retried" in done)


async def priorities():
    await noted.kicker().with_labels(priority=9).kiq("urgent")
    await until("the urgent task", lambda: "urgent" in done)


def lost_broker(command):
    async def feature():
        await asyncio.to_thread(control, command)

        async def send():
            while True:
                try:
                    return await asyncio.wait_for(noted.kiq(f"{command} after"), 5)
                except Exception as error:
                    print("not yet:", repr(error))
                    await asyncio.sleep(0.5)
        await asyncio.wait_for(send(), 30)
        await until("the task after it came back", lambda: f"{command} after" in done, 30)
    return feature


async def clean_up():
    receiver.cancel()
    await broker.shutdown()
    import aio_pika
    connection = await aio_pika.connect(report.URL)
    channel = await connection.channel()
    for name in (f"{RUN}.tasks", f"{RUN}.delay", f"{RUN}.dead"):
        await channel.queue_delete(name)
    await channel.exchange_delete(f"{RUN}.taskiq")
    await connection.close()


async def start():
    global receiver
    broker.is_worker_process = True
    await broker.startup()
    receiver = asyncio.create_task(run_receiver_task(broker))
    await asyncio.sleep(0.5)


loop = asyncio.new_event_loop()
loop.run_until_complete(start())
report.run({name: lambda step=step: loop.run_until_complete(step()) for name, step in {
    "tasks": tasks, "delay": delay, "retries": retries, "priorities": priorities, "restart": lost_broker("restart"),
    "kill": lost_broker("kill"), "clean-up": clean_up}.items()})
