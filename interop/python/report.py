"""The line protocol with the driver (see ../README.md): results of features, and commands for the broker."""

import os
import secrets
import sys
import threading
import time
import traceback

BROKER = os.environ.get("INTEROP_BROKER", "other")
FULL = bool(os.environ.get("INTEROP_FULL"))
URL = os.environ.get("AMQP_URL", "amqp://guest:guest@127.0.0.1:5672/%2F")
TLS_URL = os.environ.get("AMQPS_URL")
CA_FILE = os.environ.get("INTEROP_CA")
WAIT_LIMIT_S = 10

RUN = f"interop.{secrets.token_hex(4)}"


class Mismatch(Exception):
    """A check failed; the text says what was expected and what came."""


class NotApplicable(Exception):
    """The library or the broker cannot be asked this; the text says why."""


def equal(what, expected, got):
    if expected != got:
        raise Mismatch(f"{what}: expected {expected!r}, got {got!r}")


def eventually(what, condition, limit_s=WAIT_LIMIT_S, pause=lambda: time.sleep(0.02)):
    """Waits until `condition` gives something, and gives that."""
    deadline = time.monotonic() + limit_s
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise Mismatch(f"expected {what} within {limit_s} s, got nothing")
        pause()
    return found


def control(command):
    """Has the driver do something to the broker or to this process, and waits until it is done."""
    print(f"do {command}", flush=True)
    answer = sys.stdin.readline().strip()
    if answer != "done":
        raise NotApplicable(answer.removeprefix("n/a ") or "nobody answers commands")


def one_line(text):
    return " ".join(str(text).split())


def run(features):
    """Runs each feature and reports it; ends the process, with 1 if one failed."""
    only = sys.argv[1:]
    failed = False
    for name, feature in features.items():
        if only and name not in only:
            continue
        try:
            feature()
            print(f"ok {name}", flush=True)
        except NotApplicable as why:
            print(f"n/a {name}: {one_line(why)}", flush=True)
        except Mismatch as mismatch:
            failed = True
            print(f"fail {name}: {one_line(mismatch)}", flush=True)
        except Exception as error:  # the library's own errors are findings too
            failed = True
            traceback.print_exc(file=sys.stdout)
            print(f"fail {name}: {one_line(repr(error))}", flush=True)
    sys.stdout.flush()
    # Threads that a failed feature left behind would keep the process alive.
    os._exit(1 if failed else 0)


def in_threads(count, work, limit_s):
    """Runs `work(0)` … `work(count - 1)` in threads; the first error of one is raised here."""
    errors = []

    def guarded(number):
        try:
            work(number)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + limit_s
    for thread in threads:
        thread.join(max(0, deadline - time.monotonic()))
    if errors:
        raise errors[0]
    if any(thread.is_alive() for thread in threads):
        raise Mismatch(f"expected all {count} threads to end within {limit_s} s")
