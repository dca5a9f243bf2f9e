"""Runs a program and speaks the line protocol with it (see ../README.md)."""

import os
import queue
import re
import signal
import subprocess
import threading
import time
from dataclasses import dataclass, field

from .broker import BrokerError, Unavailable

REPORT = re.compile(r"(ok|fail|n/a) ([a-z0-9-]+)(?:: (.*))?$")
COMMAND = re.compile(r"do ([a-z]+)(?: ([0-9.]+))?$")


@dataclass
class Outcome:
    state: str  # ok, fail or n/a
    why: str = ""


@dataclass
class Results:
    """What a client's programs reported, by feature, and what they printed beside it."""

    outcomes: dict = field(default_factory=dict)
    output: list = field(default_factory=list)

    def report(self, feature, state, why=""):
        known = self.outcomes.get(feature)
        # Two programs of one client may test the same feature: what failed in one has failed.
        if known is None or known.state == "n/a" or (known.state == "ok" and state == "fail"):
            self.outcomes[feature] = Outcome(state, why)

    def failed(self):
        return [feature for feature, outcome in self.outcomes.items() if outcome.state == "fail"]


def give(process, broker, command, argument):
    """Does what a program asked for; gives the answer for it."""
    try:
        if command == "freeze":
            os.killpg(process.pid, signal.SIGSTOP)
            try:
                time.sleep(float(argument))
            finally:
                os.killpg(process.pid, signal.SIGCONT)
        else:
            getattr(broker, f"do_{command}")()
    except Unavailable as why:
        return f"n/a {why}"
    except AttributeError:
        return f"n/a no command {command}"
    except (BrokerError, ProcessLookupError, subprocess.TimeoutExpired) as error:
        return f"n/a {command} went wrong: {str(error).splitlines()[0]}"
    return "done"


def run_program(command, cwd, env, broker, limit_s, results):
    """Runs one program to its end and adds what it reports to `results`."""
    process = subprocess.Popen(command, cwd=cwd, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               text=True, errors="replace", start_new_session=True)
    lines = queue.Queue()

    def read():
        for line in process.stdout:
            lines.put(line.rstrip("\n"))
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    deadline = time.monotonic() + limit_s
    reported = failures = 0
    late = False
    try:
        while True:
            try:
                line = lines.get(timeout=max(0, deadline - time.monotonic()))
            except queue.Empty:
                late = True
                break
            if line is None:
                break
            if report := REPORT.match(line):
                reported += 1
                failures += report[1] == "fail"
                results.report(report[2], report[1], report[3] or "")
            elif asked := COMMAND.match(line):
                answer = give(process, broker, *asked.groups())
                try:
                    process.stdin.write(answer + "\n")
                    process.stdin.flush()
                except BrokenPipeError:
                    pass
            else:
                results.output.append(line)
    finally:
        if not late:
            ended(process)
        try:
            # With everything that it started, also when it ended by itself.
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
    name = os.path.basename(str(command[-1]))
    if late:
        results.report("program", "fail", f"{name} had not ended after {limit_s} s")
    elif process.returncode != 0 and not failures:
        # A program that fails without naming a feature gives no result to believe.
        results.report("program", "fail", f"{name} ended with exit code {process.returncode}: {tail(results.output)}")
    elif not reported:
        results.report("program", "fail", f"{name} reported nothing: {tail(results.output)}")


def ended(process):
    """Gives a process that closed its output a moment to end by itself."""
    try:
        process.wait(5)
        return True
    except subprocess.TimeoutExpired:
        return False


def tail(output):
    return " | ".join(line for line in output[-3:] if line.strip()) or "no output"


def run_quietly(command, cwd, env, limit_s):
    """Runs a command with everything it starts; gives its exit code (None at the limit) and its output."""
    process = subprocess.Popen(command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True)
    try:
        output, _ = process.communicate(timeout=limit_s)
        return process.returncode, output
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        return None, f"{output}\nstopped after {limit_s} s"
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise
