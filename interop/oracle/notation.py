"""The text form of scripts and recordings: values, commands and steps. README.md describes it for those who write one."""

import re
from dataclasses import dataclass, field

import codec

ALIASES = {name: f"basic.{name}" for name in
           ["qos", "consume", "cancel", "get", "ack", "reject", "recover", "recover-async", "nack"]}

# What a script may call besides methods.
VERBS = {"open", "connect", "raw", "drop", "hold-close-ok", "publish", "header", "body", "frame", "wait-eof"}

ESCAPES = {"n": b"\n", "r": b"\r", "t": b"\t", '"': b'"', "\\": b"\\", "0": b"\0"}
TYPED = re.compile(r"([A-Za-z]):")
KEY = re.compile(r"([A-Za-z][\w.-]*)=")
BARE = re.compile(r"[^\s,\]\}]+")


class ScriptError(Exception):
    """A script that cannot be read or played."""


@dataclass
class Token:
    tag: str
    value: object
    bare: bool = False  # a word without quotes, which may be the name of a flag


@dataclass
class Command:
    verb: str
    positional: list = field(default_factory=list)  # of Token
    named: list = field(default_factory=list)  # of (name, Token)

    def option(self, name, default=None):
        for key, token in self.named:
            if key == name:
                return token.value
        return default


@dataclass
class Step:
    text: str
    connection: str = ""  # empty for `sleep`
    channel: int = 0
    bare: bool = False  # `!`: nothing is opened for it
    commands: list = field(default_factory=list)
    sleep_ms: int = 0


class Cursor:
    def __init__(self, text):
        self.text, self.at = text, 0

    def skip(self):
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1

    def done(self):
        self.skip()
        return self.at == len(self.text)

    def peek(self):
        return self.text[self.at:self.at + 1]

    def match(self, pattern):
        found = pattern.match(self.text, self.at)
        if found:
            self.at = found.end()
        return found

    def expect(self, char):
        self.skip()
        if self.peek() != char:
            raise ScriptError(f"{char} expected in: {self.text[self.at:]}")
        self.at += 1

    def quoted(self):
        """The bytes of `"..."`, or of `"..."*N`."""
        self.expect('"')
        out = bytearray()
        while self.peek() != '"':
            char = self.peek()
            if not char:
                raise ScriptError(f"no end of the text in: {self.text}")
            self.at += 1
            if char != "\\":
                out += char.encode()
                continue
            escape = self.peek()
            self.at += 1
            if escape == "x":
                out.append(int(self.text[self.at:self.at + 2], 16))
                self.at += 2
            else:
                out += ESCAPES[escape]
        self.at += 1
        times = self.match(re.compile(r"\*(\d+)"))
        return bytes(out) * (int(times[1]) if times else 1)

    def token(self):
        self.skip()
        char = self.peek()
        if char == '"':
            return Token("S", self.quoted())
        if char == "{":
            return Token("F", self.table())
        if char == "[":
            return Token("A", self.array())
        typed = self.match(TYPED)
        if typed:
            return Token(typed[1], self.typed(typed[1]))
        word = self.match(BARE)
        if not word:
            raise ScriptError(f"value expected in: {self.text[self.at:]}")
        return bare_token(word[0])

    def typed(self, tag):
        if tag == "F":
            return self.table()
        if tag == "A":
            return self.array()
        if self.peek() == '"':
            return self.quoted()
        found = self.match(BARE)
        word = found[0] if found else ""
        if tag == "V":
            return None
        if tag in "fd":
            return float(word)
        if tag == "t":
            return word == "true"
        if tag == "D":
            scale, unscaled = word.split("/")
            return int(scale), int(unscaled)
        if tag in codec.SCALARS:
            return int(word)
        if tag == "S":
            return word.encode()
        return bytes.fromhex(word)

    def table(self):
        self.expect("{")
        pairs = []
        self.skip()
        while self.peek() != "}":
            key = self.match(KEY)
            name = key[1].encode() if key else self.quoted()
            if not key:
                self.expect("=")
            token = self.token()
            pairs.append((name, (token.tag, token.value)))
            self.skip()
            if self.peek() == ",":
                self.at += 1
                self.skip()
        self.at += 1
        return pairs

    def array(self):
        self.expect("[")
        items = []
        self.skip()
        while self.peek() != "]":
            token = self.token()
            items.append((token.tag, token.value))
            self.skip()
            if self.peek() == ",":
                self.at += 1
                self.skip()
        self.at += 1
        return items


def bare_token(word):
    if re.fullmatch(r"-?\d+", word):
        number = int(word)
        return Token("I" if -2**31 <= number < 2**31 else "l", number)
    if word in ("true", "false"):
        return Token("t", word == "true")
    return Token("S", word.encode(), bare=True)


def parse_command(text):
    cursor = Cursor(text.strip())
    word = cursor.match(BARE)
    if not word:
        raise ScriptError("a step without a command")
    verb = ALIASES.get(word[0], word[0])
    if verb not in codec.METHODS and verb not in VERBS:
        raise ScriptError(f"{verb} is no command and no method")
    if verb == "raw":
        return Command(verb, [Token("x", raw_bytes(cursor.text[cursor.at:]))])
    command = Command(verb)
    while not cursor.done():
        key = cursor.match(KEY)
        if key:
            command.named.append((key[1], cursor.token()))
        else:
            command.positional.append(cursor.token())
    return command


def raw_bytes(text):
    """Hex bytes and quoted texts."""
    cursor, out = Cursor(text), bytearray()
    while not cursor.done():
        out += cursor.quoted() if cursor.peek() == '"' else bytes.fromhex(cursor.match(BARE)[0])
    return bytes(out)


STEP = re.compile(r"(c\d+)(?:\.(\d+))?(!?):\s+(.*)")
REPEAT = re.compile(r"repeat (\d+) (.*)")


def parse_step(line):
    if line.startswith("sleep "):
        return Step(line, sleep_ms=int(line.split()[1]))
    found = STEP.fullmatch(line)
    if not found:
        raise ScriptError(f"no step: {line}")
    step = Step(line, found[1], int(found[2] or 0), bool(found[3]))
    for part in found[4].split(";;"):
        repeat = REPEAT.fullmatch(part.strip())
        if repeat:
            step.commands += [parse_command(repeat[2].replace("%d", str(i + 1))) for i in range(int(repeat[1]))]
        else:
            step.commands.append(parse_command(part))
    return step


def parse_script(text):
    """The steps; lines that start with `#` and empty ones are for the reader only."""
    steps = []
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        try:
            steps.append(parse_step(line))
        except (ScriptError, ValueError, KeyError) as error:
            raise ScriptError(f"line {number}: {error!r}") from error
    return steps


def method_values(command, method):
    """The command's arguments as values of the method's fields. Unknown names go into the table `arguments`."""
    kinds = dict(method.fields)
    hidden = {"ticket", "prefetch-size"}
    places = [name for name, kind in method.fields if kind not in ("bit", "table") and name not in hidden]
    values, arguments = {}, []
    for token in command.positional:
        word = token.value.decode(errors="replace") if token.bare else None
        if word in kinds and kinds[word] == "bit":
            values[word] = True
        elif places:
            name = places.pop(0)
            values[name] = coerce(token, kinds[name])
        else:
            raise ScriptError(f"{method.name}: no place for {token.value!r}")
    for name, token in command.named:
        name = "consumer-tag" if name == "tag" and "consumer-tag" in kinds else name
        if name in kinds:
            values[name] = token.value if kinds[name] == "bit" else coerce(token, kinds[name])
        elif "arguments" in kinds:
            arguments.append((name.encode(), (token.tag, token.value)))
        else:
            raise ScriptError(f"{method.name} has no {name}")
    if arguments:
        values["arguments"] = values.get("arguments", []) + arguments
    return values


def coerce(token, kind):
    if kind in ("shortstr", "longstr") and isinstance(token.value, int):
        return str(token.value).encode()
    return token.value


def text(data):
    """Bytes in quotes, as scripts have them; long ones by their length."""
    if len(data) > 300:
        run = data[:1] * len(data) == data
        return f'{text(data[:1])}*{len(data)}' if run else f'{text(data[:20])}...{len(data)} bytes'
    out = []
    for char in data.decode("utf-8", "surrogateescape"):
        code = ord(char)
        if char in '"\\':
            out.append("\\" + char)
        elif 0xDC80 <= code <= 0xDCFF:
            out.append(f"\\x{code - 0xDC00:02x}")
        elif code < 32 or code == 127:
            out.append(f"\\x{code:02x}")
        else:
            out.append(char)
    return '"' + "".join(out) + '"'


def value_text(tag, value):
    if tag == "I":
        return str(value)
    if tag == "S":
        return text(value)
    if tag == "t":
        return "true" if value else "false"
    if tag == "F":
        return table_text(value)
    if tag == "A":
        return "[" + ", ".join(value_text(*item) for item in value) + "]"
    if tag == "V":
        return "V:"
    if tag == "x":
        return "x:" + value.hex()
    if tag == "D":
        return f"D:{value[0]}/{value[1]}"
    return f"{tag}:{value}"


def table_text(pairs):
    """In order of the names, since a broker may sort a table or leave it."""
    parts = sorted(f"{name.decode(errors='replace')}={value_text(*value)}" for name, value in pairs)
    return "{" + ", ".join(parts) + "}"
