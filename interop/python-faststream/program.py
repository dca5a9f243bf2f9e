"""FastStream: subscribers and publishers, manual acks, a reply over direct reply-to, topic exchange, reconnection."""

import asyncio

from faststream import AckPolicy
from faststream.rabbit import ExchangeType, RabbitBroker, RabbitExchange, RabbitQueue
from faststream.rabbit.annotations import RabbitMessage

import report
from report import RUN, control, equal

got, tries = [], []
broker = RabbitBroker(report.URL, reconnect_interval=0.3, logger=None)
numbers = RabbitQueue(f"{RUN}.numbers", durable=True)
squares = RabbitQueue(f"{RUN}.squares", durable=True)
retried = RabbitQueue(f"{RUN}.retried", durable=True)
asked = RabbitQueue(f"{RUN}.asked", durable=True)
logs = RabbitExchange(f"{RUN}.logs", type=ExchangeType.TOPIC, durable=True)
errors = RabbitQueue(f"{RUN}.errors", durable=True, routing_key="*.error")


@broker.subscriber(numbers)
@broker.publisher(squares)
async def square(number: int) -> int:
    return number * number


@broker.subscriber(squares)
async def collect(number: int):
    got.append(number)


@broker.subscriber(retried, ack_policy=AckPolicy.MANUAL)
async def second_time(body: str, message: RabbitMessage):
    tries.append(message.raw_message.redelivered)
    await (message.nack(requeue=True) if len(tries) == 1 else message.ack())


@broker.subscriber(asked)
async def answer(name: str) -> str:
    return f"hello {name}"


@broker.subscriber(errors, logs)
async def error(body: str):
    got.append(body)


async def until(what, condition, limit_s=15):
    deadline = asyncio.get_running_loop().time() + limit_s
    while not condition():
        if asyncio.get_running_loop().time() > deadline:
            raise report.Mismatch(f"expected {what} within {limit_s} s, got {got} {tries}")
        await asyncio.sleep(0.02)


async def pipeline():
    for n in range(20):
        await broker.publish(n, numbers)
    await until("20 squares", lambda: sorted(x for x in got if isinstance(x, int)) == [n * n for n in range(20)])


async def acks():
    await broker.publish("again", retried)
    await until("two tries", lambda: len(tries) == 2)
    equal("redelivered", [False, True], tries)


async def rpc():
    reply = await broker.request("leveret", asked, timeout=10)
    equal("reply", "hello leveret", await reply.decode())


async def topic():
    await broker.publish("disk full", exchange=logs, routing_key="disk.error")
    await broker.publish("all is well", exchange=logs, routing_key="disk.info")
    await until("the error", lambda: "disk full" in got)
    equal("nothing else", False, "all is well" in got)


def lost_broker(command):
    async def feature():
        await asyncio.to_thread(control, command)

        async def publish():
            while True:
                try:
                    return await broker.publish(f"{command}.after", exchange=logs, routing_key="x.error", persist=True, timeout=5)
                except Exception as error:
                    print("not yet:", repr(error))
                    await asyncio.sleep(0.5)
        await asyncio.wait_for(publish(), 30)
        await until("the message after it came back", lambda: f"{command}.after" in got, 30)
    return feature


async def clean_up():
    await broker.stop()
    import aio_pika
    connection = await aio_pika.connect(report.URL)
    channel = await connection.channel()
    for queue in (numbers, squares, retried, asked, errors):
        await channel.queue_delete(queue.name)
    await channel.exchange_delete(logs.name)
    await connection.close()


loop = asyncio.new_event_loop()
loop.run_until_complete(broker.start())
report.run({name: lambda step=step: loop.run_until_complete(step()) for name, step in {
    "pipeline": pipeline, "acks": acks, "rpc": rpc, "topic": topic, "restart": lost_broker("restart"), "kill": lost_broker("kill"),
    "clean-up": clean_up}.items()})
