"""The features of ../FEATURES.md, for any library that adapter.py describes."""

import hashlib
import re
import threading
import time
from collections import Counter
from datetime import datetime, timezone
from urllib.parse import urlsplit

import report
from adapter import CANCELLED
from report import RUN, WAIT_LIMIT_S, Mismatch, NotApplicable, control, equal, eventually

SHUTDOWN = "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'"
PERSISTENT = {"delivery_mode": 2}
HOST, PORT = urlsplit(report.URL).hostname, urlsplit(report.URL).port


def kind(value):
    """True equals 1 and b"" no "", so values are compared with what they are; a library's own number is a number."""
    return next((known for known in (bool, int, float, str, bytes) if isinstance(value, known)), type(value))


def ask(command, refused):
    try:
        control(command)
    except NotApplicable as why:
        refused.append(why)


class Features:
    def __init__(self, library):
        self.library = library
        self.opened = []
        self.used = set()

    def run(self):
        names = re.findall(r"def f_(\w+)", open(__file__).read())
        features = {name.replace("_", "-"): getattr(self, f"f_{name}") for name in names}
        report.run({name: lambda name=name, step=step: self.guarded(name, step) for name, step in features.items()})

    def guarded(self, name, step):
        if name in self.library.unable:
            raise NotApplicable(self.library.unable[name])
        self.used = set()
        try:
            step()
        finally:
            self.clean_up()

    def clean_up(self):
        for connection in self.opened:
            try:
                if connection.is_open():
                    connection.close()
            except Exception:
                pass
        self.opened = []
        if not self.used:
            return
        try:
            connection = self.library.connect()
            channel = connection.channel()
            for kind, name in self.used:
                channel.queue_delete(name) if kind == "queue" else channel.exchange_delete(name)
            connection.close()
        except Exception as error:
            print("clean-up:", repr(error))

    # --- What the features stand on ---

    def connect(self, **options):
        self.opened.append(self.library.connect(**options))
        return self.opened[-1]

    def name(self, kind, role):
        name = f"{RUN}.{role}"
        self.used.add((kind, name))
        return name

    def queue(self, role):
        return self.name("queue", role)

    def exchange(self, role):
        return self.name("exchange", role)

    def refused(self, what, code, text, action):
        """`action` must raise the library's own exception with this code and text."""
        try:
            action()
        except Mismatch:
            raise
        except Exception as error:
            equal(what, (code, text), self.library.closed(error) or repr(error))
        else:
            raise Mismatch(f"{what}: expected {code} {text}, got no exception")

    def channel_refused(self, connection, what, code, text, action):
        channel = connection.channel()

        def provoke():
            action(channel)
            # Publish and ack have no reply: the error shows at the next calls that have one.
            eventually(f"{what}: {code}", lambda: channel.qos(1), limit_s=2, pause=lambda: connection.wait(0.02))

        self.refused(what, code, text, provoke)
        equal(f"{what}: the connection is open", True, connection.is_open())

    # --- The features ---

    def f_connect(self):
        for mechanism in ("PLAIN", *self.library.mechanisms):
            connection = self.connect(mechanism=mechanism)
            equal("product", "RabbitMQ", connection.product())
            connection.channel().close()
            connection.close()
            equal("open after close", False, connection.is_open())
        self.refused("wrong password", 403,
                     "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. "
                     "For details see the broker logfile.", lambda: self.connect(password="wrong"))
        if self.library.tells_unknown_vhost:
            self.refused("unknown vhost", 530, "NOT_ALLOWED - vhost nowhere not found", lambda: self.connect(vhost="nowhere"))

    def f_declare(self):
        connection = self.connect()
        channel = connection.channel()
        for kind in ("direct", "fanout", "topic", "headers"):
            exchange = self.exchange(kind)
            channel.exchange_declare(exchange, kind, durable=kind != "topic", auto_delete=kind == "fanout", internal=kind == "headers")
            channel.exchange_declare(exchange, kind, durable=kind != "topic", auto_delete=kind == "fanout", internal=kind == "headers")
            channel.exchange_passive(exchange)
        queue = self.queue("durable")
        arguments = {"x-max-length": 100, "x-message-ttl": 60000, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead", "x-max-priority": 5}
        equal("declare-ok", (queue, 0, 0), tuple(channel.queue_declare(queue, durable=True, arguments=arguments)))
        equal("declare-ok again", (queue, 0, 0), tuple(channel.queue_declare(queue, durable=True, arguments=arguments)))
        for durable, exclusive, auto_delete in ((True, True, False), (False, True, True), (True, False, True)):
            declared = channel.queue_declare("", durable=durable, exclusive=exclusive, auto_delete=auto_delete)
            equal("prefix of a server's name", "amq.gen-", declared.name[:8])
            self.used.add(("queue", declared.name))

        source, target = self.exchange("direct"), self.exchange("fanout")
        channel.exchange_bind(target, source, "k", {"note": "any"})
        channel.queue_bind(queue, target, "")
        channel.publish(source, "k", b"through two exchanges")
        channel.publish(source, "other", b"nowhere")
        eventually("a message", lambda: channel.queue_passive(queue).messages == 1, pause=lambda: connection.wait(0.02))
        channel.exchange_unbind(target, source, "k", {"note": "any"})
        channel.publish(source, "k", b"unbound")
        channel.publish(target, "", b"second")
        eventually("two messages", lambda: channel.queue_passive(queue).messages == 2, pause=lambda: connection.wait(0.02))

        by_headers = self.exchange("by-headers")
        channel.exchange_declare(by_headers, "headers", durable=True)
        channel.queue_bind(queue, by_headers, "", {"x-match": "all", "shape": "round", "size": 3})
        channel.publish(by_headers, "", b"no", {"headers": {"shape": "round", "size": 4}})
        channel.publish(by_headers, "", b"yes", {"headers": {"shape": "round", "size": 3, "more": True}})
        eventually("three messages", lambda: channel.queue_passive(queue).messages == 3, pause=lambda: connection.wait(0.02))
        channel.queue_unbind(queue, by_headers, "", {"x-match": "all", "shape": "round", "size": 3})
        channel.publish(by_headers, "", b"yes", {"headers": {"shape": "round", "size": 3}})
        equal("purged", 3, channel.queue_purge(queue))
        channel.publish("", queue, b"last")
        eventually("the last", lambda: channel.queue_passive(queue).messages == 1, pause=lambda: connection.wait(0.02))
        equal("deleted with it", 1, channel.queue_delete(queue))
        equal("deleted again", 0, channel.queue_delete(queue))
        channel.exchange_delete(by_headers)
        channel.exchange_delete(by_headers)

    def f_confirms(self):
        connection = self.connect()
        channel = connection.channel()
        queue, full = self.queue("confirms"), self.queue("full")
        channel.queue_declare(queue, durable=True)
        channel.queue_declare(full, durable=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
        channel.confirm()
        equal("publish", "ack", channel.publish("", queue, b"one", PERSISTENT, mandatory=True))
        channel.publish_many("", queue, [b"%d" % n for n in range(200)], PERSISTENT)
        equal("messages after all confirms", 201, channel.queue_passive(queue).messages)
        returned = channel.publish("", f"{RUN}.nowhere", b"lost", {"correlation_id": "c"}, mandatory=True)
        if returned == "nack" or returned == "ack":
            raise Mismatch(f"unroutable: expected the message back, got {returned}")
        equal("returned", ((312, "NO_ROUTE"), f"{RUN}.nowhere"), (returned.returned, returned.routing_key))
        # Not every library gives the message itself back.
        if returned.body is not None:
            equal("returned message", (b"lost", "c"), (returned.body, returned.properties.get("correlation_id")))
        equal("without mandatory", "ack", channel.publish("", f"{RUN}.nowhere", b"lost"))
        equal("first in the small queue", "ack", channel.publish("", full, b"1"))
        equal("second in the small queue", "nack", channel.publish("", full, b"2"))

    def f_properties(self):
        connection = self.connect()
        channel = connection.channel()
        queue = self.queue("properties")
        channel.queue_declare(queue, durable=True)
        every = {
            "content_type": "text/plain", "content_encoding": "utf-8", "delivery_mode": 2, "priority": 3, "correlation_id": "corr",
            "reply_to": "reply", "expiration": "60000", "message_id": "id", "timestamp": datetime(2024, 2, 29, 12, 30, 15, tzinfo=timezone.utc),
            "type": "kind", "user_id": "guest", "app_id": "app", "cluster_id": "cluster", "headers": self.library.headers,
        }
        every = {key: value for key, value in every.items() if key not in self.library.no_properties}
        channel.publish("", queue, b"all", every)
        channel.publish("", queue, b"none")
        channel.publish("", queue, b"some", {"headers": {"key": "värde ✓"}, "type": "t" * 255})
        got = []
        for _ in range(3):
            got.append(eventually("a message", lambda: channel.get(queue), pause=lambda: connection.wait(0.02)))
        for key, value in every.items():
            if key == "headers":
                for header, sent in value.items():
                    back = got[0].properties["headers"].get(header)
                    equal(f"header {header}", (kind(sent), sent), (kind(back), back))
                equal("headers", set(value), set(got[0].properties["headers"]))
            else:
                equal(key, value, got[0].properties.get(key))
        equal("no properties", {}, {key: value for key, value in got[1].properties.items() if value not in (None, {}, "")
                                    and key not in self.library.always})
        equal("some", ("värde ✓", "t" * 255), (got[2].properties["headers"]["key"], got[2].properties["type"]))

    def f_consume(self):
        connection = self.connect()
        channel = connection.channel()
        queue, other = self.queue("consume"), self.queue("second")
        for name in (queue, other):
            channel.queue_declare(name, durable=True)
        for n in range(5):
            channel.publish("", queue, b"%d" % n)
        channel.qos(2)
        inbox = channel.consume(queue, tag="interop-tag")
        equal("consumer tag", "interop-tag", inbox.tag)
        first, second = inbox.next(), inbox.next()
        equal("first two", [(b"0", 1, False), (b"1", 2, False)], [(m.body, m.tag, m.redelivered) for m in (first, second)])
        inbox.nothing()
        channel.ack(first.tag)
        third = inbox.next()
        equal("after an ack", (b"2", 3, False), (third.body, third.tag, third.redelivered))
        channel.nack(second.tag, requeue=True)
        again = inbox.next()
        equal("after nack with requeue", (b"1", True), (again.body, again.redelivered))
        channel.reject(again.tag, requeue=True)
        again = inbox.next()
        equal("after reject with requeue", (b"1", True), (again.body, again.redelivered))
        channel.reject(again.tag, requeue=False)
        fourth = inbox.next()
        equal("after reject", b"3", fourth.body)
        channel.nack(fourth.tag, requeue=False)
        fifth = inbox.next()
        equal("after nack", b"4", fifth.body)
        channel.ack(fifth.tag, multiple=True)
        channel.qos(0)
        unacked = channel.consume(other, no_ack=True)
        channel.publish("", other, b"unasked")
        equal("auto-ack consumer", b"unasked", unacked.next().body)
        channel.cancel(inbox.tag)
        channel.publish("", queue, b"after cancel")
        inbox.nothing()
        eventually("the message after cancel", lambda: channel.queue_passive(queue).messages, pause=lambda: connection.wait(0.02))
        equal("left over", (1, 0), tuple(channel.queue_passive(queue))[1:])

    def f_get(self):
        connection = self.connect()
        channel = connection.channel()
        queue = self.queue("get")
        channel.queue_declare(queue, durable=True)
        equal("get from an empty queue", None, channel.get(queue))
        channel.publish("", queue, b"a")
        channel.publish("", queue, b"b")
        eventually("both", lambda: channel.queue_passive(queue).messages == 2, pause=lambda: connection.wait(0.02))
        message = channel.get(queue)
        equal("get", (b"a", False, "", queue), (message.body, message.redelivered, message.exchange, message.routing_key))
        if message.count is not None:
            equal("left", 1, message.count)
        channel.nack(message.tag, requeue=True)
        message = channel.get(queue)
        equal("get again", (b"a", True), (message.body, message.redelivered))
        channel.ack(message.tag)
        channel.ack(channel.get(queue).tag)
        equal("empty again", None, channel.get(queue))

    def f_tx(self):
        connection, watch = self.connect(), self.connect()
        channel, watcher = connection.channel(), watch.channel()
        queue = self.queue("tx")
        channel.queue_declare(queue, durable=True)
        channel.tx_select()
        channel.publish("", queue, b"1", PERSISTENT)
        channel.publish("", queue, b"2", PERSISTENT)
        equal("before commit", 0, watcher.queue_passive(queue).messages)
        channel.tx_commit()
        equal("after commit", 2, watcher.queue_passive(queue).messages)
        channel.publish("", queue, b"3", PERSISTENT)
        message = channel.get(queue)
        channel.ack(message.tag)
        channel.tx_rollback()
        channel.ack(message.tag)
        channel.tx_commit()
        equal("after rollback, ack and commit", 1, watcher.queue_passive(queue).messages)

    def f_large(self):
        connection = self.connect()
        channel = connection.channel()
        queue = self.queue("large")
        channel.queue_declare(queue, durable=True)
        inbox = channel.consume(queue)
        for size in (0, 1, 131072 - 8, 131072 - 7, 1 << 20, 16 << 20):
            body = hashlib.shake_128(b"%d" % size).digest(size)
            channel.publish("", queue, body, PERSISTENT)
            message = inbox.next(30)
            equal(f"size of {size}", size, len(message.body))
            equal(f"contents of {size}", True, body == message.body)
            channel.ack(message.tag)

    def f_cancel_notify(self):
        connection, other = self.connect(), self.connect()
        channel = connection.channel()
        queue = self.queue("deleted")
        channel.queue_declare(queue, durable=True)
        inbox = channel.consume(queue)
        other.channel().queue_delete(queue)
        equal("cancelled by the broker", True, inbox.next() is CANCELLED)
        channel.queue_declare(queue, durable=True)

    def f_channel_errors(self):
        connection, holder = self.connect(), self.connect()
        queue, exchange = self.queue("errors"), self.exchange("errors")
        channel = holder.channel()
        channel.queue_declare(queue, durable=True)
        channel.exchange_declare(exchange, "direct", durable=True)
        exclusive = channel.queue_declare("", exclusive=True).name
        nowhere = f"{RUN}.nowhere"
        self.channel_refused(connection, "no queue", 404, f"NOT_FOUND - no queue '{nowhere}' in vhost '/'", lambda c: c.queue_passive(nowhere))
        self.channel_refused(connection, "no queue to get from", 404, f"NOT_FOUND - no queue '{nowhere}' in vhost '/'", lambda c: c.get(nowhere))
        self.channel_refused(connection, "no exchange", 404, f"NOT_FOUND - no exchange '{nowhere}' in vhost '/'", lambda c: c.publish(nowhere, "", b"x"))
        self.channel_refused(
            connection, "other queue", 406, f"PRECONDITION_FAILED - inequivalent arg 'auto_delete' for queue '{queue}' in vhost '/': "
            "received 'true' but current is 'false'", lambda c: c.queue_declare(queue, durable=True, auto_delete=True))
        self.channel_refused(
            connection, "other exchange", 406, f"PRECONDITION_FAILED - inequivalent arg 'type' for exchange '{exchange}' in vhost '/': "
            "received 'fanout' but current is 'direct'", lambda c: c.exchange_declare(exchange, "fanout", durable=True))
        self.channel_refused(connection, "unknown tag", 406, "PRECONDITION_FAILED - unknown delivery tag 99", lambda c: c.ack(99))
        self.channel_refused(
            connection, "exclusive", 405, f"RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '{exclusive}' in vhost '/'. "
            "It could be originally declared on another connection or the exclusive property value does not match that of the original "
            "declaration.", lambda c: c.queue_passive(exclusive))
        self.channel_refused(connection, "reserved name", 403, "ACCESS_REFUSED - exchange name 'amq.mine' contains reserved prefix 'amq.*'",
                             lambda c: c.exchange_declare("amq.mine", "direct", durable=True))
        self.channel_refused(
            connection, "bad argument", 406, f"PRECONDITION_FAILED - invalid arg 'x-message-ttl' for queue '{nowhere}' in vhost '/': "
            "{value_negative,-1}", lambda c: c.queue_declare(nowhere, durable=True, arguments={"x-message-ttl": -1}))
        channel.publish("", queue, b"x")
        eventually("a message", lambda: channel.queue_passive(queue).messages == 1, pause=lambda: holder.wait(0.02))
        self.channel_refused(connection, "not empty", 406, f"PRECONDITION_FAILED - queue '{queue}' in vhost '/' not empty",
                             lambda c: c.queue_delete(queue, if_empty=True))
        channel.consume(queue, exclusive=True)
        self.channel_refused(connection, "in use", 406, f"PRECONDITION_FAILED - queue '{queue}' in vhost '/' in use",
                             lambda c: c.queue_delete(queue, if_unused=True))
        self.channel_refused(connection, "exclusive consumer", 403, f"ACCESS_REFUSED - queue '{queue}' in vhost '/' in exclusive use",
                             lambda c: c.consume(queue))

    def f_connection_errors(self):
        connection = self.connect()
        channel = connection.channel()
        queue = self.queue("immediate")
        channel.queue_declare(queue, durable=True)
        self.library.provoke(channel, queue)
        error = connection.wait_lost(WAIT_LIMIT_S)
        equal("publish with immediate", (540, "NOT_IMPLEMENTED - immediate=true"), self.library.closed(error) or repr(error))

    def f_idle(self):
        connection = self.connect(heartbeat=1)
        channel = connection.channel()
        connection.wait(3.5)
        equal("open after 3.5 s", True, connection.is_open())
        channel.queue_declare("", exclusive=True)

    def f_frozen(self):
        connection = self.connect(heartbeat=1)
        queue = connection.channel().queue_declare("", exclusive=True).name
        control("freeze 5")
        other = self.connect()
        self.channel_refused(other, "the queue of the frozen connection", 404, f"NOT_FOUND - no queue '{queue}' in vhost '/'",
                             lambda c: c.queue_passive(queue))

    def f_stalled(self):
        connection = self.connect(heartbeat=1)
        connection.channel()
        control("stall")
        try:
            connection.wait_lost(15)
        finally:
            control("resume")

    def f_blocked(self):
        connection, consuming = self.connect(), self.connect()
        channel = connection.channel()
        queue = self.queue("blocked")
        channel.queue_declare(queue, durable=True)
        inbox = consuming.channel().consume(queue, no_ack=True)
        control("block")
        try:
            channel.publish("", queue, b"while blocked")
            eventually("the library to say blocked", lambda: "blocked" in connection.events, pause=lambda: connection.wait(0.02))
        finally:
            control("unblock")
        eventually("the library to say unblocked", lambda: "unblocked" in connection.events, pause=lambda: connection.wait(0.02))
        equal("what was published while blocked", b"while blocked", inbox.next().body)

    def f_restart(self):
        self.lost_broker("restart")

    def f_kill(self):
        self.lost_broker("kill")

    def lost_broker(self, command):
        connection = self.connect(recover=self.library.recovers)
        channel = connection.channel()
        queue = self.queue(command)
        channel.queue_declare(queue, durable=True)
        channel.confirm()
        equal("confirmed before", "ack", channel.publish("", queue, b"before", PERSISTENT))
        consuming = connection.channel()
        consuming.qos(10)
        inbox = consuming.consume(queue)
        equal("before", (b"before", False), (lambda m: (m.body, m.redelivered))(inbox.next()))
        if self.library.recovers:
            control(command)
        else:
            # It reads while the broker goes: what comes before the end of the connection is lost once that is reset.
            error, refused = None, []
            asked = threading.Thread(target=lambda: ask(command, refused))
            asked.start()
            try:
                error = connection.wait_lost(25)
            finally:
                asked.join()
                if refused:
                    raise refused[0]
            if command == "restart" and not (self.library.loses_close and isinstance(error, OSError)):
                equal("end of the connection", (320, SHUTDOWN), self.library.closed(error) or repr(error))
            connection = self.connect()
            channel, consuming = connection.channel(), connection.channel()
            channel.confirm()
            inbox = consuming.consume(queue)
        message = inbox.next(25)
        equal("after it came back", (b"before", True), (message.body, message.redelivered))
        consuming.ack(message.tag)

        def publish():
            try:
                return channel.publish("", queue, b"after", PERSISTENT)
            except Exception as error:
                print("not yet:", repr(error))
                return None
        equal("confirmed afterwards", "ack", eventually("a confirm", publish, 25, lambda: connection.wait(0.3)))
        message = inbox.next()
        equal("published afterwards", b"after", message.body)
        consuming.ack(message.tag)

    def f_consumer_timeout(self):
        limit_s = WAIT_LIMIT_S if report.BROKER == "leveret" else 130
        connection = self.connect()
        channel = connection.channel()
        queue = self.queue("timeout")
        channel.queue_declare(queue, durable=True, arguments={"x-consumer-timeout": 1000})
        inbox = channel.consume(queue)
        channel.publish("", queue, b"slow")
        equal("first delivery", b"slow", inbox.next().body)
        text = ("PRECONDITION_FAILED - delivery acknowledgement on channel N timed out. Timeout value used: 1000 ms. "
                "This timeout value can be configured, see consumers doc guide to learn more")

        def use():
            try:
                # Anything that has a reply: the library reports the close there at the latest.
                channel.qos(1)
            except Exception as error:
                return error
        connection.wait(1.5)
        error = eventually("the channel's end", use, limit_s, lambda: connection.wait(0.5))
        code, got = self.library.closed(error) or (0, repr(error))
        equal("end of the channel", (406, text), (code, re.sub(r"on channel \d+", "on channel N", got)))
        again = (connection if self.library.reopens_channels else self.connect()).channel()
        message = again.consume(queue).next()
        equal("on a new channel", (b"slow", True), (message.body, message.redelivered))
        again.ack(message.tag)

    def f_concurrency(self):
        seconds = 60 if report.FULL else 4
        queue = self.queue("many")
        shared = None if self.library.thread_per_connection else self.connect()
        self.connect().channel().queue_declare(queue, durable=True)
        lock, sent, seen, fresh = threading.Lock(), [], set(), Counter()
        all_sent = threading.Barrier(50)

        def work(number):
            connection = shared or self.library.connect()
            publishing, consuming = connection.channel(), connection.channel()
            publishing.confirm()
            consuming.qos(20)
            inbox = consuming.consume(queue)

            def take():
                while inbox.waiting:
                    message = inbox.waiting.popleft()
                    with lock:
                        seen.add(message.body)
                        fresh[message.body] += not message.redelivered
                    consuming.ack(message.tag)

            until = time.monotonic() + seconds
            n = 0
            try:
                while time.monotonic() < until:
                    body = b"%d %d" % (number, n)
                    equal("publish", "ack", publishing.publish("", queue, body))
                    with lock:
                        sent.append(body)
                    n += 1
                    connection.wait(0.001)
                    take()
            except BaseException:
                all_sent.abort()
                raise
            all_sent.wait(WAIT_LIMIT_S)
            overdue = time.monotonic() + 2 * WAIT_LIMIT_S
            while len(seen) < len(sent) and time.monotonic() < overdue:
                connection.wait(0.05)
                take()
            if not shared:
                connection.close()

        report.in_threads(50, work, seconds + 4 * WAIT_LIMIT_S)
        lost = [body for body in sent if body not in seen]
        twice = [body for body, count in fresh.items() if count > 1]
        equal("lost, doubled", ([], []), (lost[:5], twice[:5]))
        print(f"concurrency: {len(sent)} messages")

    def f_tls(self):
        if not report.TLS_URL:
            raise NotApplicable("the broker has no TLS listener yet")
        connection = self.connect(tls=True)
        channel = connection.channel()
        queue = channel.queue_declare("", exclusive=True).name
        channel.publish("", queue, b"secret")
        eventually("the message", lambda: channel.get(queue), pause=lambda: connection.wait(0.02))
