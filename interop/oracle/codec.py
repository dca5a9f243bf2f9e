"""AMQP 0-9-1 on the wire, for the differential check: frames, methods, field tables and properties.

Shares nothing with Leveret's own codec, so that a mistake there shows as a difference. Field values are pairs of a
tag (the letter on the wire) and a Python value; texts are bytes. Readers are lenient: what they cannot decode becomes
a `Malformed`, which a recording shows as a line of its own.
"""

import struct

METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
FRAME_END = 0xCE

# id, name, fields in wire order; a type that is left out is a bit.
METHODS_TEXT = """
10.10 connection.start version-major:octet version-minor:octet server-properties:table mechanisms:longstr locales:longstr
10.11 connection.start-ok client-properties:table mechanism:shortstr response:longstr locale:shortstr
10.20 connection.secure challenge:longstr
10.21 connection.secure-ok response:longstr
10.30 connection.tune channel-max:short frame-max:long heartbeat:short
10.31 connection.tune-ok channel-max:short frame-max:long heartbeat:short
10.40 connection.open virtual-host:shortstr capabilities:shortstr insist
10.41 connection.open-ok known-hosts:shortstr
10.50 connection.close reply-code:short reply-text:shortstr class-id:short method-id:short
10.51 connection.close-ok
10.60 connection.blocked reason:shortstr
10.61 connection.unblocked
10.70 connection.update-secret new-secret:longstr reason:shortstr
10.71 connection.update-secret-ok
20.10 channel.open out-of-band:shortstr
20.11 channel.open-ok channel-id:longstr
20.20 channel.flow active
20.21 channel.flow-ok active
20.40 channel.close reply-code:short reply-text:shortstr class-id:short method-id:short
20.41 channel.close-ok
30.10 access.request realm:shortstr exclusive passive active write read
30.11 access.request-ok ticket:short
40.10 exchange.declare ticket:short exchange:shortstr type:shortstr passive durable auto-delete internal no-wait arguments:table
40.11 exchange.declare-ok
40.20 exchange.delete ticket:short exchange:shortstr if-unused no-wait
40.21 exchange.delete-ok
40.30 exchange.bind ticket:short destination:shortstr source:shortstr routing-key:shortstr no-wait arguments:table
40.31 exchange.bind-ok
40.40 exchange.unbind ticket:short destination:shortstr source:shortstr routing-key:shortstr no-wait arguments:table
40.51 exchange.unbind-ok
50.10 queue.declare ticket:short queue:shortstr passive durable exclusive auto-delete no-wait arguments:table
50.11 queue.declare-ok queue:shortstr message-count:long consumer-count:long
50.20 queue.bind ticket:short queue:shortstr exchange:shortstr routing-key:shortstr no-wait arguments:table
50.21 queue.bind-ok
50.30 queue.purge ticket:short queue:shortstr no-wait
50.31 queue.purge-ok message-count:long
50.40 queue.delete ticket:short queue:shortstr if-unused if-empty no-wait
50.41 queue.delete-ok message-count:long
50.50 queue.unbind ticket:short queue:shortstr exchange:shortstr routing-key:shortstr arguments:table
50.51 queue.unbind-ok
60.10 basic.qos prefetch-size:long prefetch-count:short global
60.11 basic.qos-ok
60.20 basic.consume ticket:short queue:shortstr consumer-tag:shortstr no-local no-ack exclusive no-wait arguments:table
60.21 basic.consume-ok consumer-tag:shortstr
60.30 basic.cancel consumer-tag:shortstr no-wait
60.31 basic.cancel-ok consumer-tag:shortstr
60.40 basic.publish ticket:short exchange:shortstr routing-key:shortstr mandatory immediate
60.50 basic.return reply-code:short reply-text:shortstr exchange:shortstr routing-key:shortstr
60.60 basic.deliver consumer-tag:shortstr delivery-tag:longlong redelivered exchange:shortstr routing-key:shortstr
60.70 basic.get ticket:short queue:shortstr no-ack
60.71 basic.get-ok delivery-tag:longlong redelivered exchange:shortstr routing-key:shortstr message-count:long
60.72 basic.get-empty cluster-id:shortstr
60.80 basic.ack delivery-tag:longlong multiple
60.90 basic.reject delivery-tag:longlong requeue
60.100 basic.recover-async requeue
60.110 basic.recover requeue
60.111 basic.recover-ok
60.120 basic.nack delivery-tag:longlong multiple requeue
85.10 confirm.select no-wait
85.11 confirm.select-ok
90.10 tx.select
90.11 tx.select-ok
90.20 tx.commit
90.21 tx.commit-ok
90.30 tx.rollback
90.31 tx.rollback-ok
"""

INTEGERS = {"octet": ">B", "short": ">H", "long": ">I", "longlong": ">Q"}

# Tag on the wire -> struct format, for values of fixed size.
SCALARS = {
    "b": ">b", "B": ">B", "s": ">h", "u": ">H", "I": ">i", "i": ">I",
    "l": ">q", "L": ">q", "f": ">f", "d": ">d", "T": ">Q",
}

# Flag bit, name, type; in wire order.
PROPERTIES = [
    (15, "content-type", "shortstr"), (14, "content-encoding", "shortstr"), (13, "headers", "table"),
    (12, "delivery-mode", "octet"), (11, "priority", "octet"), (10, "correlation-id", "shortstr"),
    (9, "reply-to", "shortstr"), (8, "expiration", "shortstr"), (7, "message-id", "shortstr"),
    (6, "timestamp", "longlong"), (5, "type", "shortstr"), (4, "user-id", "shortstr"),
    (3, "app-id", "shortstr"), (2, "cluster-id", "shortstr"),
]


class Malformed(Exception):
    """Bytes that are no AMQP."""


class Method:
    """One line of the table above."""

    def __init__(self, line):
        ids, self.name, *fields = line.split()
        self.class_id, self.method_id = (int(part) for part in ids.split("."))
        self.fields = [tuple(field.split(":")) if ":" in field else (field, "bit") for field in fields]

    def has(self, field):
        return any(name == field for name, _ in self.fields)


METHODS = {}
BY_ID = {}
for _line in METHODS_TEXT.strip().splitlines():
    _method = Method(_line)
    METHODS[_method.name] = _method
    BY_ID[_method.class_id, _method.method_id] = _method

WITH_CONTENT = {"basic.return", "basic.deliver", "basic.get-ok"}


def shortstr(text):
    if len(text) > 255:
        raise ValueError(f"shortstr of {len(text)} bytes")
    return bytes([len(text)]) + text


def longstr(text):
    return struct.pack(">I", len(text)) + text


def encode_value(tag, value):
    if tag in SCALARS:
        return tag.encode() + struct.pack(SCALARS[tag], value)
    if tag == "t":
        return b"t" + bytes([1 if value else 0])
    if tag in "Sx":
        return tag.encode() + longstr(value)
    if tag == "D":
        scale, unscaled = value
        return b"D" + struct.pack(">BI", scale, unscaled & 0xFFFFFFFF)
    if tag == "F":
        return b"F" + encode_table(value)
    if tag == "A":
        return b"A" + longstr(b"".join(encode_value(*item) for item in value))
    if tag == "V":
        return b"V"
    # A tag that does not exist, with bytes of the script's choice.
    return tag.encode() + value


def encode_table(pairs):
    """`pairs`: list of (name, (tag, value)); duplicates and order are kept."""
    return longstr(b"".join(shortstr(name) + encode_value(*value) for name, value in pairs))


def encode_field(kind, value):
    if kind in INTEGERS:
        return struct.pack(INTEGERS[kind], value)
    return {"shortstr": shortstr, "longstr": longstr, "table": encode_table}[kind](value)


def encode_method(method, values):
    """Ids and arguments. A field without a value is 0, false, empty."""
    out = bytearray(struct.pack(">HH", method.class_id, method.method_id))
    bits, count = 0, 0
    for name, kind in method.fields:
        if kind == "bit":
            bits |= bool(values.get(name)) << count
            count += 1
            continue
        if count:
            out.append(bits)
            bits, count = 0, 0
        empty = 0 if kind in INTEGERS else [] if kind == "table" else b""
        out += encode_field(kind, values.get(name, empty))
    if count:
        out.append(bits)
    return bytes(out)


def encode_content_header(size, properties, class_id=60, weight=0):
    flags, values = 0, bytearray()
    for bit, name, kind in PROPERTIES:
        if name in properties:
            flags |= 1 << bit
            values += encode_field(kind, properties[name])
    return struct.pack(">HHQH", class_id, weight, size, flags) + bytes(values)


def frame(kind, channel, payload):
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + bytes([FRAME_END])


class Reader:
    """A cursor over a frame's payload."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, count):
        if self.at + count > len(self.data):
            raise Malformed("bytes missing")
        self.at += count
        return self.data[self.at - count:self.at]

    def unpack(self, form):
        values = struct.unpack(form, self.take(struct.calcsize(form)))
        return values[0] if len(values) == 1 else values

    def field(self, kind):
        if kind in INTEGERS:
            return self.unpack(INTEGERS[kind])
        if kind == "shortstr":
            return self.take(self.unpack(">B"))
        if kind == "longstr":
            return self.take(self.unpack(">I"))
        return self.table()

    def table(self):
        inner = Reader(self.take(self.unpack(">I")))
        pairs = []
        while inner.at < len(inner.data):
            name = inner.field("shortstr")
            pairs.append((name, inner.value()))
        return pairs

    def value(self):
        tag = chr(self.unpack(">B"))
        if tag in SCALARS:
            return tag, self.unpack(SCALARS[tag])
        if tag == "t":
            return tag, self.unpack(">B") != 0
        if tag in "Sx":
            return tag, self.field("longstr")
        if tag == "D":
            return tag, self.unpack(">BI")
        if tag == "F":
            return tag, self.table()
        if tag == "A":
            inner, items = Reader(self.field("longstr")), []
            while inner.at < len(inner.data):
                items.append(inner.value())
            return tag, items
        if tag == "V":
            return tag, None
        raise Malformed(f"field value of type {tag!r}")

    def end(self):
        if self.at != len(self.data):
            raise Malformed(f"{len(self.data) - self.at} bytes left over")


def decode_method(payload):
    """(Method, values by field name)."""
    reader = Reader(payload)
    ids = reader.unpack(">HH")
    method = BY_ID.get(ids)
    if method is None:
        raise Malformed(f"method {ids[0]}.{ids[1]}")
    values, bits, left = {}, 0, 0
    for name, kind in method.fields:
        if kind == "bit":
            if not left:
                bits, left = reader.unpack(">B"), 8
            values[name] = bool(bits & 1)
            bits, left = bits >> 1, left - 1
            continue
        left = 0
        values[name] = reader.field(kind)
    reader.end()
    return method, values


def decode_content_header(payload):
    """(body size, properties by name, in wire order)."""
    reader = Reader(payload)
    class_id, weight, size, flags = reader.unpack(">HHQH")
    if class_id != 60 or weight != 0:
        raise Malformed(f"content header of class {class_id}, weight {weight}")
    properties = {name: reader.field(kind) for bit, name, kind in PROPERTIES if flags >> bit & 1}
    reader.end()
    return size, properties


def split_frames(buffer):
    """Takes the complete frames off the bytearray: list of (type, channel, payload)."""
    frames = []
    while len(buffer) >= 7:
        kind, channel, size = struct.unpack(">BHI", buffer[:7])
        if kind not in (METHOD, HEADER, BODY, HEARTBEAT):
            raise Malformed("no frame: " + bytes(buffer[:16]).hex(" "))
        if len(buffer) < 8 + size:
            break
        if buffer[7 + size] != FRAME_END:
            raise Malformed("frame without its end")
        frames.append((kind, channel, bytes(buffer[7:7 + size])))
        del buffer[:8 + size]
    return frames
