"""RabbitMQ's tutorial patterns with pika, every result checked. See ../README.md."""

import asyncio
import random
from datetime import datetime, timezone
from decimal import Decimal

import pika
from pika.adapters.asyncio_connection import AsyncioConnection

from harness import (
    PARAMETERS,
    VHOST,
    WAIT_LIMIT_S,
    Inbox,
    Mismatch,
    connect,
    connection,
    equal,
    main,
    publish_confirmed,
    ready_count,
    refused,
    wait_until,
)

PERSISTENT = pika.BasicProperties(content_type="text/plain", delivery_mode=2)


def work_queue(names):
    queue = names.queue("tasks")
    leaving, staying = connect(), connect()
    channel = leaving.channel()
    declared = channel.queue_declare(queue, durable=True).method
    equal("declare-ok", (queue, 0, 0), (declared.queue, declared.message_count, declared.consumer_count))
    publish_confirmed(leaving, queue, [f"task {n}" for n in range(10)], PERSISTENT)

    channel.basic_qos(prefetch_count=1)
    left = Inbox(channel, queue)
    first = left.take()
    equal("first task", (b"task 0", 1, False, "", queue), (
        first.body, first.method.delivery_tag, first.method.redelivered,
        first.method.exchange, first.method.routing_key))
    equal("first task's properties", vars(PERSISTENT), vars(first.properties))

    # The first consumer holds its one message all the while, so the order at the second is exact.
    channel = staying.channel()
    channel.basic_qos(prefetch_count=1)
    stayed = Inbox(channel, queue)
    for n in range(1, 10):
        task = stayed.take()
        equal("task", (f"task {n}".encode(), False), (task.body, task.method.redelivered))
        equal("waiting behind prefetch 1", 0, len(stayed.waiting))
        if n == 1:
            equal("ready behind two prefetches of 1", 8, ready_count(staying, queue))
        if n == 5:
            channel.basic_nack(task.method.delivery_tag, requeue=True)
            task = stayed.take()
            equal("after nack", (b"task 5", True), (task.body, task.method.redelivered))
        stayed.ack(task)

    equal("ready tasks", 0, ready_count(leaving, queue))
    leaving.process_data_events()
    equal("second task at prefetch 1", 0, len(left.waiting))
    leaving.close()
    task = stayed.take()
    equal("after its consumer left", (b"task 0", True), (task.body, task.method.redelivered))
    stayed.ack(task)
    staying.close()

    with connection() as conn:
        declared = conn.channel().queue_declare(queue, durable=True).method
        equal("left over: messages, consumers", (0, 0), (declared.message_count, declared.consumer_count))


def publish_subscribe(names):
    exchange = names.exchange("logs")
    with connection() as publisher, connection() as second:
        first = connect()
        channel = publisher.channel()
        channel.exchange_declare(exchange, exchange_type="fanout")
        inboxes, queues = [], []
        for subscriber in (first, second):
            mine = subscriber.channel()
            queue = mine.queue_declare("", exclusive=True).method.queue
            equal("prefix of a server's name", "amq.gen-", queue[:8])
            mine.queue_bind(queue, exchange)
            queues.append(queue)
            inboxes.append(Inbox(mine, queue, auto_ack=True))
        equal("two different names", 2, len(set(queues)))

        for n in range(5):
            channel.basic_publish(exchange, "any key", f"log {n}")
        for inbox in inboxes:
            for n in range(5):
                log = inbox.take()
                equal("log", (f"log {n}".encode(), exchange, "any key", False), (
                    log.body, log.method.exchange, log.method.routing_key, log.method.redelivered))

        inboxes[1].channel.queue_unbind(queues[1], exchange)
        channel.basic_publish(exchange, "", "for the bound one")
        channel.basic_publish("", queues[1], "end")
        equal("bound subscriber", b"for the bound one", inboxes[0].take().body)
        equal("unbound subscriber", b"end", inboxes[1].take().body)

        refused(publisher, 405,
                f"RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '{queues[0]}' in vhost '{VHOST}'. "
                "It could be originally declared on another connection or the exclusive property value "
                "does not match that of the original declaration.",
                lambda other: other.queue_declare(queues[0], passive=True))
        first.close()
        refused(publisher, 404, f"NOT_FOUND - no queue '{queues[0]}' in vhost '{VHOST}'",
                lambda other: other.queue_declare(queues[0], passive=True))


def check_routes(names, exchange_type, bindings, keys, expected):
    """Publishes one message per key; each queue must get the expected ones, in order, and no other."""
    exchange = names.exchange(exchange_type)
    with connection() as conn:
        channel = conn.channel()
        channel.exchange_declare(exchange, exchange_type=exchange_type, durable=True)
        inboxes = {}
        for role, binding_keys in bindings.items():
            queue = channel.queue_declare("", exclusive=True).method.queue
            for key in binding_keys:
                channel.queue_bind(queue, exchange, key)
            inboxes[role] = queue, Inbox(channel, queue, auto_ack=True)
        for key in keys:
            channel.basic_publish(exchange, key, key)
        for role, (queue, inbox) in inboxes.items():
            # Sent last, so what comes before it is all that there is.
            channel.basic_publish("", queue, "end")
            got = []
            while (delivery := inbox.take()).body != b"end":
                equal("routing key", delivery.body.decode(), delivery.method.routing_key)
                got.append(delivery.method.routing_key)
            equal(f"routing keys at queue '{role}'", expected[role], got)


def routing(names):
    check_routes(
        names, "direct",
        # "error" twice: the same binding again is no second binding.
        bindings={"all": ["info", "warning", "error"], "errors": ["error", "error"]},
        keys=["info", "debug", "error", "warning", "error"],
        expected={"all": ["info", "error", "warning", "error"], "errors": ["error", "error"]})


def topics(names):
    keys = ["quick.orange.rabbit", "lazy.orange.elephant", "quick.orange.fox", "lazy.brown.fox", "lazy.pink.rabbit",
            "quick.brown.fox", "orange", "quick.orange.new.rabbit", "lazy.orange.new.rabbit", "lazy", "quick.rabbit", ""]
    check_routes(
        names, "topic",
        bindings={"orange": ["*.orange.*"], "lazy": ["*.*.rabbit", "lazy.#"], "one": ["*"],
                  "ends": ["quick.#.rabbit"], "all": ["#"]},
        keys=keys,
        expected={
            "orange": ["quick.orange.rabbit", "lazy.orange.elephant", "quick.orange.fox"],
            "lazy": ["quick.orange.rabbit", "lazy.orange.elephant", "lazy.brown.fox", "lazy.pink.rabbit",
                     "lazy.orange.new.rabbit", "lazy"],
            "one": ["orange", "lazy"],
            "ends": ["quick.orange.rabbit", "quick.orange.new.rabbit", "quick.rabbit"],
            "all": keys})


def serve_squares(inbox, requests):
    for _ in range(requests):
        request = inbox.take()
        inbox.channel.basic_publish(
            "", request.properties.reply_to, str(int(request.body) ** 2),
            pika.BasicProperties(correlation_id=request.properties.correlation_id))
        inbox.ack(request)
        yield request


def rpc(names):
    queue = names.queue("requests")
    with connection() as server, connection() as client:
        serving = server.channel()
        serving.queue_declare(queue, exclusive=False, durable=True)
        serving.basic_qos(prefetch_count=1)
        requests = Inbox(serving, queue)
        calling = client.channel()

        callback = calling.queue_declare("", exclusive=True).method.queue
        replies = Inbox(calling, callback, auto_ack=True)
        for n in range(5):
            calling.basic_publish("", queue, str(n), pika.BasicProperties(reply_to=callback, correlation_id=f"call {n}"))
        for request in serve_squares(requests, 5):
            equal("reply_to", callback, request.properties.reply_to)
        for n in range(5):
            reply = replies.take()
            equal("reply", (str(n * n).encode(), f"call {n}"), (reply.body, reply.properties.correlation_id))

        direct = Inbox(calling, "amq.rabbitmq.reply-to", auto_ack=True)
        for n in range(5, 8):
            calling.basic_publish("", queue, str(n), pika.BasicProperties(
                reply_to="amq.rabbitmq.reply-to", correlation_id=f"call {n}"))
        for request in serve_squares(requests, 3):
            equal("rewritten reply_to", "amq.rabbitmq.reply-to.", request.properties.reply_to[:22])
        for n in range(5, 8):
            reply = direct.take()
            equal("direct reply", (str(n * n).encode(), f"call {n}", "", False), (
                reply.body, reply.properties.correlation_id, reply.method.exchange, reply.method.redelivered))

        refused(client, 406, "PRECONDITION_FAILED - reply consumer cannot acknowledge",
                lambda other: other.basic_consume("amq.rabbitmq.reply-to", lambda *_: None, auto_ack=False))
        refused(client, 406, "PRECONDITION_FAILED - fast reply consumer does not exist",
                lambda other: other.basic_publish("", queue, "1", pika.BasicProperties(reply_to="amq.rabbitmq.reply-to")))


def confirms(names):
    queue, short = names.queue("confirmed"), names.queue("short")
    with connection() as conn:
        channel = conn.channel()
        channel.queue_declare(queue, durable=True)
        channel.queue_declare(short, durable=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
        channel.confirm_delivery()
        channel.basic_publish("", queue, "single", PERSISTENT)
        equal("messages after one confirm", 1, ready_count(conn, queue))
        try:
            channel.basic_publish("", f"{queue}.none", "lost", PERSISTENT, mandatory=True)
        except pika.exceptions.UnroutableError as unroutable:
            [lost] = unroutable.messages
            equal("returned message", (312, "NO_ROUTE", "", f"{queue}.none", b"lost", vars(PERSISTENT)), (
                lost.method.reply_code, lost.method.reply_text, lost.method.exchange,
                lost.method.routing_key, lost.body, vars(lost.properties)))
        else:
            raise Mismatch("unroutable mandatory message: expected UnroutableError, got none")

        channel.basic_publish("", short, "fits")
        try:
            channel.basic_publish("", short, "one too many")
        except pika.exceptions.NackError:
            pass
        else:
            raise Mismatch("publish to a full queue: expected NackError, got none")

    asyncio.run(asyncio.wait_for(confirms_while_publishing(queue), WAIT_LIMIT_S))
    with connection() as conn:
        equal("messages after the batch", 1 + 1000, conn.channel().queue_purge(queue).method.message_count)


async def confirms_while_publishing(queue):
    """The blocking adapter waits for each confirm; this one publishes on while they come."""
    loop = asyncio.get_running_loop()
    opened, done = loop.create_future(), loop.create_future()
    conn = AsyncioConnection(
        PARAMETERS,
        on_open_callback=lambda conn: conn.channel(on_open_callback=opened.set_result),
        on_open_error_callback=lambda _, error: opened.set_exception(error),
        on_close_callback=lambda _, reason: done.done() or done.set_exception(reason))
    channel = await opened

    events = []
    outstanding = set(range(1, 1002))

    def confirmed(frame):
        tag, multiple = frame.method.delivery_tag, frame.method.multiple
        events.append((type(frame.method).__name__, tag, multiple))
        outstanding.difference_update(range(1, tag + 1) if multiple else [tag])
        if not outstanding and not done.done():
            done.set_result(None)

    channel.add_on_return_callback(lambda _c, method, _p, body: events.append(("Return", method.reply_code, body)))
    channel.confirm_delivery(confirmed)
    for n in range(1000):
        channel.basic_publish("", queue, f"batch {n}", PERSISTENT)
    channel.basic_publish("", f"{queue}.none", "lost", mandatory=True)
    await done

    equal("kinds of answers", {"Ack", "Return"}, {kind for kind, *_ in events})
    returned = events.index(("Return", 312, b"lost"))
    acked = next(i for i, (kind, tag, multiple) in enumerate(events)
                 if kind == "Ack" and (tag == 1001 or tag == 0 and multiple))
    equal("return before its ack", True, returned < acked)
    conn.close()
    # The close handshake still needs the loop.
    while not conn.is_closed:
        await asyncio.sleep(0.01)


def errors(names):
    queue, missing = names.queue("durable"), names.queue("missing")
    with connection() as conn:
        def no_queue(name):
            return f"NOT_FOUND - no queue '{name}' in vhost '{VHOST}'"

        conn.channel().queue_declare(queue, durable=True)
        publish_confirmed(conn, queue, ["still here"])
        refused(conn, 404, no_queue(missing), lambda channel: channel.queue_declare(missing, passive=True))
        refused(conn, 404, no_queue(missing), lambda channel: channel.basic_consume(missing, lambda *_: None))
        refused(conn, 406,
                f"PRECONDITION_FAILED - inequivalent arg 'durable' for queue '{queue}' in vhost '{VHOST}': "
                "received 'false' but current is 'true'",
                lambda channel: channel.queue_declare(queue, durable=False))
        refused(conn, 406, "PRECONDITION_FAILED - unknown delivery tag 99", lambda channel: channel.basic_ack(99))
        refused(conn, 404, f"NOT_FOUND - no exchange '{missing}' in vhost '{VHOST}'",
                lambda channel: channel.basic_publish(missing, "", "lost"))
        method, _, body = conn.channel().basic_get(queue, auto_ack=True)
        equal("message after the channel errors", (b"still here", False), (body, method.redelivered))

    for change, expected in (
        ({"credentials": pika.PlainCredentials(PARAMETERS.credentials.username, "wrong")},
         "ProbableAuthenticationError: ConnectionClosedByBroker: (403) 'ACCESS_REFUSED - Login was refused using "
         "authentication mechanism PLAIN. For details see the broker logfile.'"),
        ({"virtual_host": missing},
         f"ProbableAccessDeniedError: ConnectionClosedByBroker: (530) 'NOT_ALLOWED - vhost {missing} not found'"),
    ):
        parameters = pika.URLParameters(f"amqp://{PARAMETERS.host}:{PARAMETERS.port}")
        parameters.credentials, parameters.virtual_host = PARAMETERS.credentials, VHOST
        for attribute, value in change.items():
            setattr(parameters, attribute, value)
        try:
            connect(parameters).close()
        except pika.exceptions.AMQPConnectionError as error:
            equal("connection refused", expected, f"{type(error).__name__}: {error.args[0]}")
        else:
            raise Mismatch(f"connection: expected {expected}, got a connection")


HEADERS = {
    "text": "snowman \N{SNOWMAN}",
    "flag": True,
    "small": -7,
    "big": 2**41,
    "decimal": Decimal("3.14"),
    "bytes": b"\x00\xff",
    "time": datetime(2024, 2, 29, 12, 0, tzinfo=timezone.utc),
    "nothing": None,
    "table": {"list": [1, "two", False, {"deep": 3}]},
}
ALL_PROPERTIES = pika.BasicProperties(
    content_type="application/octet-stream", content_encoding="identity", headers=HEADERS, delivery_mode=2, priority=3,
    correlation_id="correlation", reply_to="reply", expiration="60000", message_id="message", timestamp=1700000000,
    type="type", user_id=PARAMETERS.credentials.username, app_id="app", cluster_id="cluster")


def messages(names):
    queue = names.queue("messages")
    large = random.Random(1).randbytes(1024 * 1024)
    with connection() as conn:
        channel = conn.channel()
        channel.queue_declare(queue, durable=True)
        inbox = Inbox(channel, queue)
        no_headers, empty_headers = pika.BasicProperties(), pika.BasicProperties(headers={})
        for what, body, properties in (
            ("1 MiB body", large, ALL_PROPERTIES),
            ("empty body", b"", ALL_PROPERTIES),
            ("no properties", b"bare", no_headers),
            ("empty header table", b"", empty_headers),
        ):
            channel.basic_publish("", queue, body, properties)
            got = inbox.take()
            if got.body != body:
                raise Mismatch(f"{what}: expected {len(body)} bytes as sent, got {len(got.body)} bytes that differ")
            sent, came = vars(properties), vars(got.properties)
            for field in sent.keys() | came.keys():
                equal(f"{field} with {what}", sent.get(field), came.get(field))
            inbox.ack(got)
        channel.basic_cancel(inbox.tag)

        publish_confirmed(conn, queue, ["one", "two", "three"])
        for expected in (("one", False, 2), ("one", True, 2), ("two", False, 1), ("three", False, 0)):
            method, _, body = channel.basic_get(queue)
            equal("get: body, redelivered, left over", expected, (body.decode(), method.redelivered, method.message_count))
            equal("get: exchange, routing key", ("", queue), (method.exchange, method.routing_key))
            if expected == ("one", False, 2):
                channel.basic_reject(method.delivery_tag, requeue=True)
            else:
                channel.basic_ack(method.delivery_tag)
        equal("get from an empty queue", (None, None, None), channel.basic_get(queue))


def queues(names):
    queue, auto_delete = names.queue("queue"), names.queue("auto-delete")
    with connection() as conn, connection() as other:
        channel = conn.channel()
        channel.queue_declare(queue, durable=True)
        publish_confirmed(conn, queue, ["held", "purged", "purged"])
        held, _, _ = channel.basic_get(queue)
        equal("purged: ready ones only", 2, channel.queue_purge(queue).method.message_count)
        channel.basic_reject(held.delivery_tag, requeue=True)
        # The next call is on another channel: wait until the message is back.
        channel.queue_declare(queue, passive=True)
        refused(conn, 406, f"PRECONDITION_FAILED - queue '{queue}' in vhost '{VHOST}' not empty",
                lambda ch: ch.queue_delete(queue, if_empty=True))

        cancelled = []
        channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
        inbox = Inbox(channel, queue)
        equal("held message", (b"held", True), (lambda d: (d.body, d.method.redelivered))(inbox.take()))
        refused(conn, 406, f"PRECONDITION_FAILED - queue '{queue}' in vhost '{VHOST}' in use",
                lambda ch: ch.queue_delete(queue, if_unused=True))
        publish_confirmed(other, queue, ["unacked too"])
        inbox.take()
        equal("deleted: ready ones only", 0, other.channel().queue_delete(queue).method.message_count)
        wait_until("a cancel notification", channel, lambda: cancelled)
        equal("cancelled consumer", [inbox.tag], cancelled)
        equal("deleted once more", 0, other.channel().queue_delete(queue).method.message_count)

        channel.queue_declare(auto_delete, exclusive=True, auto_delete=True)
        channel.basic_cancel(Inbox(channel, auto_delete).tag)
        refused(conn, 404, f"NOT_FOUND - no queue '{auto_delete}' in vhost '{VHOST}'",
                lambda ch: ch.queue_declare(auto_delete, passive=True))


if __name__ == "__main__":
    main({
        "work-queue": work_queue,
        "publish-subscribe": publish_subscribe,
        "routing": routing,
        "topics": topics,
        "rpc": rpc,
        "confirms": confirms,
        "errors": errors,
        "messages": messages,
        "queues": queues,
    })
