"""Plays a script's steps against a broker and writes down what the broker sends, in a form that is the same each time.

What differs from run to run gets a fixed text: the prefix of names is `@`, generated names are numbered in the order
in which they appear (`$gen1`, `$ctag1`, `$reply1`), a time of today is `now`. Confirms of one step are put together,
since a broker may batch them as it likes.
"""

import re
import secrets
import select
import socket
import time

import codec
import notation
from notation import ScriptError

GENERATED = [
    ("gen", re.compile(rb"amq\.gen-[A-Za-z0-9_-]{22}")),
    ("ctag", re.compile(rb"amq\.ctag-[A-Za-z0-9_-]{22}")),
    ("reply", re.compile(rb"amq\.rabbitmq\.reply-to\.[A-Za-z0-9+/=._-]{20,}")),
]
GENERATED_NAME = re.compile(rb"\$(?:gen|ctag|reply)\d+")

# Of connection.start, what is the broker's own business: values that are not shown, and what Leveret adds or,
# as it may, does not offer.
OWN_PROPERTIES = {b"cluster_name", b"copyright", b"information", b"platform", b"version"}
ADDED_PROPERTIES = {b"leveret"}
OPTIONAL_MECHANISMS = {b"ANONYMOUS"}

CAPABILITIES = [b"authentication_failure_close", b"basic.nack", b"connection.blocked", b"consumer_cancel_notify",
                b"exchange_exchange_bindings", b"publisher_confirms"]

REPLY_LIMIT_S = 8.0
BARRIER_CHANNEL = 64999
# Commands without a reply, whose effect may show elsewhere.
UNANSWERED = {"publish", "basic.ack", "basic.nack", "basic.reject", "basic.recover-async"}


class Names:
    """Script names <-> wire names."""

    def __init__(self):
        self.prefix = f"t{secrets.token_hex(3)}-".encode()
        self.generated = {}

    def to_wire(self, data):
        if isinstance(data, bytes):
            data = data.replace(b"@", self.prefix)
            return GENERATED_NAME.sub(lambda found: self.wire_name(found[0]), data)
        if isinstance(data, list):
            return [self.to_wire(item) for item in data]
        if isinstance(data, tuple):
            return tuple(self.to_wire(item) for item in data)
        return data

    def wire_name(self, label):
        for wire, known in self.generated.items():
            if known == label:
                return wire
        return label

    def to_script(self, data):
        if isinstance(data, bytes):
            data = data.replace(self.prefix, b"@")
            for kind, pattern in GENERATED:
                data = pattern.sub(lambda found, kind=kind: self.label(kind, found[0]), data)
            return data
        if isinstance(data, list):
            return [self.to_script(item) for item in data]
        if isinstance(data, tuple):
            if len(data) == 2 and data[0] == "T" and abs(data[1] - time.time()) < 86400:
                return ("T", "now")
            return tuple(self.to_script(item) for item in data)
        return data

    def label(self, kind, wire):
        if wire not in self.generated:
            count = sum(1 for label in self.generated.values() if label.startswith(b"$" + kind.encode()))
            self.generated[wire] = f"${kind}{count + 1}".encode()
        return self.generated[wire]


class Channel:
    def __init__(self):
        self.open = False
        self.content = None  # (method text, header size, properties, body, frames) while a content arrives
        self.published = 0  # since confirm.select; None before
        self.confirming = False
        self.unconfirmed = set()
        self.replies_due = []  # lists of names, one of which must come
        self.confirms = {}  # of this step: "ack" or "nack" -> sequence numbers
        self.lines = []


class Connection:
    def __init__(self, name, address, names):
        self.name, self.names = name, names
        self.socket = socket.create_connection(address, timeout=5)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = bytearray()
        self.channels = {}
        self.eof = False
        self.closing = False  # a close was seen: EOF follows
        self.usable = False  # open-ok was seen
        self.hold_close_ok = False
        self.manual = False
        self.heartbeats = 0  # since the last step
        self.frame_max = 131072

    def channel(self, number):
        return self.channels.setdefault(number, Channel())

    def send(self, data):
        try:
            self.socket.sendall(data)
        except OSError:
            pass  # the broker went away; reading tells

    def send_method(self, number, name, values=None):
        method = codec.METHODS[name]
        self.send(codec.frame(codec.METHOD, number, codec.encode_method(method, values or {})))

    def receive(self):
        """Reads what is there, when the socket is readable. False if it was heartbeats only."""
        beats = self.heartbeats
        try:
            data = self.socket.recv(1 << 18)
        except TimeoutError:
            return False
        except OSError:
            data = b""
        if not data:
            self.end("EOF")
            return True
        self.buffer += data
        if self.buffer.startswith(b"AMQP") and len(self.buffer) >= 8:
            self.channel(0).lines.append("protocol header " + bytes(self.buffer[4:8]).hex(" "))
            del self.buffer[:8]
        try:
            for kind, number, payload in codec.split_frames(self.buffer):
                self.on_frame(kind, number, payload)
        except codec.Malformed as error:
            self.end(f"MALFORMED {error}")
        return len(data) != 8 * (self.heartbeats - beats)

    def end(self, line):
        self.channel(0).lines.append(line)
        self.eof, self.usable = True, False
        self.socket.close()

    def on_frame(self, kind, number, payload):
        channel = self.channel(number)
        if kind == codec.HEARTBEAT:
            self.heartbeats += 1
        elif kind == codec.METHOD:
            self.on_method(number, channel, *codec.decode_method(payload))
        elif channel.content is None:
            raise codec.Malformed("content without a method")
        else:
            self.on_content(kind, channel, payload)

    def on_content(self, kind, channel, payload):
        content = channel.content
        if kind == codec.HEADER:
            content["size"], content["properties"] = codec.decode_content_header(payload)
        else:
            if len(payload) + 8 > self.frame_max:
                raise codec.Malformed(f"body frame of {len(payload)} bytes")
            content["body"] += payload
            content["frames"] += 1
        if len(content["body"]) >= content["size"]:
            channel.content = None
            line = content["line"] + " " + notation.text(self.names.to_script(bytes(content["body"])))
            if content["frames"] > 1:
                line += f" in {content['frames']} frames"
            channel.lines.append(line + self.fields_text(content["properties"].items()))

    def on_method(self, number, channel, method, values):
        name = method.name
        if channel.content is not None:
            raise codec.Malformed("method within a content")
        if channel.confirming and name in ("basic.ack", "basic.nack"):
            self.on_confirm(channel, name, values)
            return
        if name == "connection.start":
            values["server-properties"] = shown_properties(values["server-properties"])
            values["mechanisms"] = b" ".join(sorted(set(values["mechanisms"].split()) - OPTIONAL_MECHANISMS))
        line = name + self.fields_text(values.items())
        if name in codec.WITH_CONTENT:
            channel.content = {"line": line, "size": 1 << 64, "properties": {}, "body": bytearray(), "frames": 0}
        else:
            channel.lines.append(line)
        if channel.replies_due and name in channel.replies_due[0]:
            channel.replies_due.pop(0)
        self.follow(number, channel, name)

    def on_confirm(self, channel, name, values):
        tag = values["delivery-tag"]
        tags = {n for n in channel.unconfirmed if n <= tag} if values["multiple"] else {tag} & channel.unconfirmed
        if not tags:
            channel.lines.append(f"{name} for {tag}, which is not unconfirmed")
        channel.unconfirmed -= tags
        # One line per step, at the place of the last: batches are the broker's choice.
        if name in channel.confirms:
            channel.lines.remove(confirm_line(name, channel.confirms[name]))
        channel.confirms[name] = channel.confirms.get(name, set()) | tags
        channel.lines.append(confirm_line(name, channel.confirms[name]))

    def follow(self, number, channel, name):
        """What a client library does with the method by itself."""
        if name == "connection.open-ok":
            self.usable = True
        elif name == "channel.open-ok":
            channel.open = True
        elif name in ("channel.close", "channel.close-ok"):
            reset(channel)
            if name == "channel.close" and not self.hold_close_ok:
                self.send_method(number, "channel.close-ok")
        elif name in ("connection.close", "connection.close-ok"):
            self.usable, self.closing = False, name == "connection.close" and not self.hold_close_ok
            for other in self.channels.values():
                reset(other)
            if self.closing:
                self.send_method(0, "connection.close-ok")
            elif name == "connection.close-ok":
                self.eof = True  # ours to close now
                self.socket.close()

    def fields_text(self, items):
        out = []
        for name, value in items:
            if name == "ticket" or value is False:
                continue
            if value is True:
                out.append(name)
            elif isinstance(value, list):
                out.append(f"{name}={notation.table_text(self.names.to_script(value))}")
            elif isinstance(value, bytes):
                out.append(f"{name}={notation.text(self.names.to_script(value))}")
            else:
                out.append(f"{name}={value}")
        return "".join(" " + part for part in out)

    def take_lines(self):
        """What came since the last call: list of (channel number, line)."""
        taken = [(number, line) for number in sorted(self.channels) for line in self.channels[number].lines]
        for channel in self.channels.values():
            channel.lines, channel.confirms = [], {}
        return taken

    def waits(self):
        """True while something that must come has not."""
        if self.eof:
            return False
        return self.closing or any(c.replies_due or c.content or c.unconfirmed for c in self.channels.values())


def confirm_line(name, tags):
    """`confirms: basic.ack 1-3 5`"""
    runs = []
    for tag in sorted(tags):
        if runs and runs[-1][1] == tag - 1:
            runs[-1][1] = tag
        else:
            runs.append([tag, tag])
    return f"confirms: {name}" + "".join(f" {a}" if a == b else f" {a}-{b}" for a, b in runs)


def reset(channel):
    channel.open = channel.confirming = False
    channel.published, channel.content = 0, None
    channel.unconfirmed, channel.replies_due = set(), []


def shown_properties(table):
    return [(name, ("S", b"(any)") if name in OWN_PROPERTIES and value[0] == "S" else value)
            for name, value in table if name not in ADDED_PROPERTIES]


class Player:
    """One script's run. `pace` decides how long to wait after a step."""

    def __init__(self, address, pace):
        self.address, self.pace = address, pace
        self.names = Names()
        self.connections = {}
        self.retired = []
        self.queues, self.exchanges = set(), set()

    def play(self, steps):
        """The transcript: list of (step text, list of answers)."""
        transcript = []
        try:
            for index, step in enumerate(steps):
                self.perform(step)
                transcript.append((step.text, self.collect(index, step)))
        finally:
            for connection in self.connections.values():
                connection.socket.close()
            self.clean_up()
        return transcript

    # -- sending

    def perform(self, step):
        if step.sleep_ms:
            self.pump_for(step.sleep_ms / 1000)
            return
        pending = bytearray()
        for command in step.commands:
            pending += self.bytes_of(step, command)
        if pending:
            connection = self.connections.get(step.connection)
            if connection is None:
                raise ScriptError(f"{step.text}: {step.connection} is not open")
            connection.send(bytes(pending))
            if self.pace.barriers and not step.bare and connection.usable and is_quiet(step):
                self.barrier(connection)

    def barrier(self, connection):
        """Waits until the broker has read what was sent: a channel of our own, unseen, asks for a reply."""
        channel = connection.channel(BARRIER_CHANNEL)
        if not channel.open:
            connection.send_method(BARRIER_CHANNEL, "channel.open")
        connection.send_method(BARRIER_CHANNEL, "basic.qos")
        self.until(connection, lambda: connection.closing or any(
            line.startswith("basic.qos-ok") for line in channel.lines))
        channel.lines = []

    def bytes_of(self, step, command):
        """Does what the command needs first and returns the bytes to send."""
        verb = command.verb
        if verb in ("open", "connect"):
            self.connect(step.connection, command)
            return b""
        if step.channel and not step.bare:
            self.make_ready(step, command)
        elif verb in codec.METHODS and not step.bare:
            self.make_connected(step.connection)
        connection = self.connections.get(step.connection)
        if connection is None:
            raise ScriptError(f"{step.text}: {step.connection} is not open")
        if verb == "drop":
            connection.socket.close()
            connection.eof = True
            return b""
        if verb == "hold-close-ok":
            connection.hold_close_ok = True
            return b""
        if verb == "wait-eof":
            connection.closing = True
            return b""
        if verb == "raw":
            return self.names.to_wire(command.positional[0].value)
        if verb == "frame":
            kind, number, payload = (token.value for token in command.positional)
            return codec.frame(kind, number, self.names.to_wire(payload))
        if verb == "body":
            return codec.frame(codec.BODY, step.channel, self.names.to_wire(command.positional[0].value))
        if verb == "header":
            size = command.positional[0].value
            properties = self.properties(command, [])
            payload = codec.encode_content_header(
                size, properties, command.option("class", 60), command.option("weight", 0))
            return codec.frame(codec.HEADER, step.channel, payload)
        return self.method_bytes(connection, step, command)

    def method_bytes(self, connection, step, command):
        method = codec.METHODS["basic.publish" if command.verb == "publish" else command.verb]
        body, properties = None, {}
        if command.verb == "publish":
            command, body, properties = self.split_publish(command)
        values = notation.method_values(command, method)
        values = {name: self.names.to_wire(value) for name, value in values.items()}
        self.remember(method, values)
        payload = codec.encode_method(method, values)
        out = codec.frame(codec.METHOD, step.channel, payload)
        channel = connection.channel(step.channel)
        if body is not None:
            out += codec.frame(codec.HEADER, step.channel, codec.encode_content_header(len(body), properties))
            size = connection.frame_max - 8
            for at in range(0, len(body), size):
                out += codec.frame(codec.BODY, step.channel, body[at:at + size])
            if channel.confirming:
                channel.published += 1
                channel.unconfirmed.add(channel.published)
        if method.name == "confirm.select":
            channel.confirming = True
        due = replies(method.name)
        if due and not values.get("no-wait"):
            channel.replies_due.append(due)
        return out

    def split_publish(self, command):
        """(the method's part, body, properties)"""
        words = [token for token in command.positional]
        plain = [token for token in words if not (token.bare and token.value in (b"mandatory", b"immediate"))]
        body = b""
        if len(plain) > 2:
            body = self.names.to_wire(notation.coerce(plain[2], "longstr"))
            words.remove(plain[2])
        names = {name for _, name, _ in codec.PROPERTIES}
        rest = [(name, token) for name, token in command.named if name not in names]
        return notation.Command("publish", words, rest), body, self.properties(command, rest)

    def properties(self, command, rest):
        kinds = {name: kind for _, name, kind in codec.PROPERTIES}
        return {name: self.names.to_wire(notation.coerce(token, kinds[name]))
                for name, token in command.named if (name, token) not in rest and name in kinds}

    def remember(self, method, values):
        if method.name == "queue.declare" and values.get("queue"):
            self.queues.add(values["queue"])
        if method.name == "exchange.declare" and values.get("exchange"):
            self.exchanges.add(values["exchange"])

    # -- opening

    def connect(self, name, command):
        if name in self.connections:
            self.retired.append(self.connections.pop(name))
            self.retired[-1].socket.close()
        connection = Connection(name, self.address, self.names)
        self.connections[name] = connection
        if command.verb == "connect":
            connection.manual = True
            return
        connection.frame_max = command.option("frame-max", 131072)
        without = command.option("without")
        capabilities = [(key, ("t", True)) for key in CAPABILITIES if key != without]
        user, password = command.option("user", b"guest"), command.option("password", b"guest")
        connection.send(b"AMQP\0\0\x09\x01")
        connection.send_method(0, "connection.start-ok", {
            "client-properties": [(b"product", ("S", b"differential check")), (b"capabilities", ("F", capabilities))],
            "mechanism": command.option("mechanism", b"PLAIN"), "response": b"\0" + user + b"\0" + password,
            "locale": b"en_US"})
        self.until(connection, lambda: any(
            line.startswith("connection.tune") for line in connection.channel(0).lines))
        if not connection.eof and not connection.closing:
            connection.channel(0).lines.clear()
            connection.send_method(0, "connection.tune-ok", {
                "channel-max": command.option("channel-max", 2047), "frame-max": connection.frame_max,
                "heartbeat": command.option("heartbeat", 0)})
            connection.send_method(0, "connection.open", {"virtual-host": command.option("vhost", b"/")})
            self.until(connection, lambda: connection.usable or connection.closing)
        if connection.channel(0).lines[:1] and connection.channel(0).lines[0].startswith("connection.start"):
            connection.channel(0).lines.pop(0)

    def make_connected(self, name):
        connection = self.connections.get(name)
        if connection is None or (connection.eof and not connection.manual):
            self.connect(name, notation.Command("open"))
            self.connections[name].take_lines()
            if not self.connections[name].usable:
                raise ScriptError(f"{name} cannot connect")

    def make_ready(self, step, command):
        """Opens the connection and the channel that the step needs, unless the script does so itself."""
        self.make_connected(step.connection)
        connection = self.connections[step.connection]
        channel = connection.channel(step.channel)
        if not connection.usable or channel.open or command.verb == "channel.open":
            return
        connection.send_method(step.channel, "channel.open")
        self.until(connection, lambda: channel.open)
        channel.lines = [line for line in channel.lines if not line.startswith("channel.open-ok")]

    # -- receiving

    def until(self, connection, ready):
        limit = time.monotonic() + REPLY_LIMIT_S
        while not ready() and not connection.eof and time.monotonic() < limit:
            self.pump(0.5)

    def pump(self, wait_s):
        """Reads from every connection that has something; False if there was nothing but heartbeats."""
        alive = [c for c in self.connections.values() if not c.eof]
        if not alive:
            time.sleep(wait_s)
            return False
        ready, _, _ = select.select([c.socket for c in alive], [], [], wait_s)
        return any([connection.receive() for connection in alive if connection.socket in ready])

    def pump_for(self, seconds):
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.pump(left)

    def collect(self, index, step):
        """Waits as the pace says and returns the step's answers."""
        begin = quiet_since = time.monotonic()
        while True:
            now = time.monotonic()
            waits = any(c.waits() for c in self.connections.values())
            if self.pace.over(index, waits, self.answers, now - begin, now - quiet_since):
                break
            if self.pump(self.pace.turn_s):
                quiet_since = time.monotonic()
        answers = self.answers()
        for connection in self.connections.values():
            if step.sleep_ms and connection.heartbeats:
                answers.append(f"{connection.name} < heartbeat")
            connection.heartbeats = 0
            connection.take_lines()
            for channel in connection.channels.values():
                channel.replies_due = []
            if not connection.eof:
                connection.closing = False
        return answers

    def answers(self):
        out = []
        for name in sorted(self.connections):
            connection = self.connections[name]
            for number in sorted(connection.channels):
                where = f"{name}.{number}" if number else name
                out += [f"{where} < {line}" for line in connection.channels[number].lines]
        return out

    # -- afterwards

    def clean_up(self):
        """Deletes what the script declared; exclusive queues went with their connections."""
        self.queues |= {wire for wire in self.names.generated if wire.startswith(b"amq.gen-")}
        self.connections = {}
        tasks = [("queue.delete", {"queue": name}) for name in sorted(self.queues)]
        tasks += [("exchange.delete", {"exchange": name}) for name in sorted(self.exchanges)
                  if name.startswith(self.names.prefix)]
        for name, values in tasks:
            step = notation.Step("clean-up", "c0", 1)
            try:
                self.make_ready(step, notation.Command(name))
                connection = self.connections["c0"]
                channel = connection.channel(1)
                channel.replies_due = [replies(name)]
                connection.send_method(1, name, values)
                self.until(connection, lambda channel=channel: not channel.replies_due)
            except (OSError, ScriptError):
                return
        for connection in self.connections.values():
            connection.socket.close()


def replies(name):
    """Names of the methods that answer this one."""
    special = {"basic.get": ["basic.get-ok", "basic.get-empty"]}
    if name in special:
        return special[name]
    return [name + "-ok"] if name + "-ok" in codec.METHODS else []


def is_quiet(step):
    """True for a step that the broker does not answer although it acts on it."""
    return all(command.verb in UNANSWERED for command in step.commands)
