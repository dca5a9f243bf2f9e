"""The broker that a program talks to: one of our own that can be killed, or one that runs already."""

import os
import re
import shlex
import signal
import subprocess
import tempfile
import threading
from pathlib import Path

START_LIMIT_S = 20
CONTROL_LIMIT_S = 120

# Low enough that a program reaches it with a few messages, see `block`.
CONFIG = """\
loopback_users = none
"""


class BrokerError(Exception):
    pass


class Unavailable(Exception):
    """A command that this broker cannot be given; the text says why."""


class Leveret:
    """The binary on a free port with a data folder of its own. Commands are methods named `do_…`."""

    kind = "leveret"

    def __init__(self, binary):
        self.binary = binary
        self.folder = tempfile.TemporaryDirectory(prefix="leveret-interop-", ignore_cleanup_errors=True)
        self.log = Path(self.folder.name) / "log"
        self.config = Path(self.folder.name) / "rabbitmq.conf"
        self.config.write_text(CONFIG)
        self.process = None
        self.wrong = None
        self.port = 0
        self.start()

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    def environment(self):
        """What a program is told beside the URL."""
        return {}

    def start(self):
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--data-dir", f"{self.folder.name}/data", "--config", self.config]
        # In the environment, because a build that has no such listener yet knows no such option.
        env = {**os.environ, "LEVERET_MANAGEMENT_PORT": "off", "LEVERET_METRICS_PORT": "off"}
        with open(self.log, "ab") as log:
            try:
                self.process = subprocess.Popen([self.binary, *options], stdout=subprocess.PIPE, stderr=log, text=True, env=env,
                                                start_new_session=True)
            except OSError as error:
                raise BrokerError(f"{self.binary}: {error.strerror}. Build it with: cargo build --release") from None
        # Once the process is killed its output ends, and so does the wait for the ready line.
        overdue = threading.Timer(START_LIMIT_S, self.process.kill)
        overdue.start()
        line = self.process.stdout.readline()
        overdue.cancel()
        ready = re.match(r"leveret ready amqp=\S+:(\d+)", line)
        if not ready:
            self.process.kill()
            raise BrokerError(self.with_log(f"expected its ready line within {START_LIMIT_S} s, got {line!r}"))
        self.port = int(ready[1])

    def end(self):
        """Asks it to stop, as a service would be; remembers what was wrong about that."""
        if self.process.poll() is not None:
            self.wrong = self.wrong or f"it ended by itself with exit code {self.process.returncode}"
            return
        self.process.send_signal(signal.SIGCONT)
        self.process.send_signal(signal.SIGTERM)
        try:
            if self.process.wait(START_LIMIT_S) != 0:
                self.wrong = self.wrong or f"expected exit code 0 after SIGTERM, got {self.process.returncode}"
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            self.wrong = self.wrong or f"expected an end within {START_LIMIT_S} s after SIGTERM, got none"

    def stop(self):
        """Ends it for good and says what was wrong in its life, or None."""
        self.end()
        wrong = self.wrong and self.with_log(self.wrong)
        self.folder.cleanup()
        return wrong

    def with_log(self, wrong):
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join([f"{wrong}; the end of its log:", *lines[-20:]])

    def do_restart(self):
        self.end()
        self.start()

    def do_kill(self):
        self.process.kill()
        self.process.wait()
        self.start()

    def do_stall(self):
        self.process.send_signal(signal.SIGSTOP)

    def do_resume(self):
        self.process.send_signal(signal.SIGCONT)

    def do_block(self):
        raise Unavailable("resource alarms cannot be set off yet")

    do_unblock = do_block


class Other:
    """A broker that runs already. Its commands are given to the shell command `control`, with the name as argument."""

    kind = "other"

    def __init__(self, address, control=None):
        self.address = address
        self.control = control
        for command in ("restart", "kill", "stall", "resume", "block", "unblock"):
            setattr(self, f"do_{command}", lambda command=command: self.run(command))

    def environment(self):
        return {}

    def run(self, command):
        if not self.control:
            raise Unavailable(f"no control over this broker to {command} it")
        done = subprocess.run([*shlex.split(self.control), command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                              timeout=CONTROL_LIMIT_S)
        if done.returncode != 0:
            raise Unavailable(f"{self.control} {command} failed: {done.stderr.strip()}")

    def stop(self):
        return None
