"""Starts and stops the brokers, each on free ports with its data in a folder of its own."""

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
START_S = 90


class Failure(Exception):
    """Something that the user has to know: what, and what to do."""


class Broker:
    """A broker that is running. `pid` is None where nobody knows."""

    def __init__(self, name, address, pid, stop=lambda: None):
        self.name, self.address, self.pid, self.stop = name, address, pid, stop


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def stop_process(process):
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout=30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def start_leveret(binary, folder):
    # Settings of the caller's environment must not reach it.
    env = {name: value for name, value in os.environ.items() if not name.startswith("LEVERET_")}
    command = [binary, "--port", "0", "--data-dir", str(folder), "--log", "error"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
    ready = process.stdout.readline()
    address = [word[5:] for word in ready.split() if word.startswith("amqp=")]
    if not address:
        raise Failure(f"{binary} did not start, see above")
    return Broker("Leveret", address[0], process.pid, lambda: stop_process(process))


def install_rabbitmq():
    """From Debian's packages. Its service is kept from starting: it would take the port of somebody's own."""
    if SERVER.exists():
        return
    hint = "install the package rabbitmq-server, or name a running one with --rabbitmq HOST:PORT"
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise Failure(f"no RabbitMQ on this machine, and only root can install it with apt-get: {hint}")
    print("installing rabbitmq-server from the packages of this system", flush=True)
    policy = Path("/usr/sbin/policy-rc.d")
    made = not policy.exists()
    if made:
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    try:
        env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in (["update"], ["install", "-y", "--no-install-recommends", "rabbitmq-server"]):
            done = subprocess.run(["apt-get", "-qq", *command], env=env, capture_output=True, text=True)
            if done.returncode != 0:
                raise Failure(f"apt-get {' '.join(command)} failed: {done.stderr.strip()[-300:]}; {hint}")
    finally:
        if made:
            policy.unlink()


def start_rabbitmq(folder):
    install_rabbitmq()
    amqp, dist, epmd = free_ports(3)
    folder.mkdir(parents=True)
    (folder / "plugins").write_text("[].\n")
    (folder / "rabbitmq.conf").write_text("loopback_users = none\nlog.console = false\n")
    env = {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(folder), "LANG": "C.UTF-8",
        "RABBITMQ_NODENAME": "compare@localhost", "RABBITMQ_NODE_PORT": str(amqp), "RABBITMQ_DIST_PORT": str(dist),
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1", "ERL_EPMD_PORT": str(epmd), "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_MNESIA_BASE": str(folder / "data"), "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"), "RABBITMQ_PID_FILE": str(folder / "pid"),
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"), "RABBITMQ_CONF_ENV_FILE": "/dev/null",
    }
    with open(folder / "out", "w", encoding="utf-8") as out:
        process = subprocess.Popen([SERVER], stdout=out, stderr=out, env=env, cwd=folder, start_new_session=True)

    def stop():
        # The server is a child of the script that was started: the group has both.
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        subprocess.run(["epmd", "-port", str(epmd), "-kill"], env=env, capture_output=True, check=False)

    address = f"127.0.0.1:{amqp}"
    until = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < until:
        if pid := listening_pid(address):
            return Broker("RabbitMQ", address, pid, stop)
        time.sleep(0.2)
    output = (folder / "out").read_text(encoding="utf-8", errors="replace")[-1500:]
    if process.poll() is None:
        stop()
    raise Failure(f"RabbitMQ did not start:\n{output}")


def running(name, address):
    """A broker that somebody else has started."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host or "localhost", int(port)), timeout=5).close()
    except (OSError, ValueError) as error:
        raise Failure(f"{name}: nothing answers at {address} ({error}); HOST:PORT is expected") from error
    return Broker(name, address, listening_pid(address))


def cpu_ticks(pid):
    """User and system time of a process, in hundredths of a second; 0 when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])


def listening_pid(address):
    """The process that listens there, if it is one of this machine that we may look at."""
    port = int(address.rpartition(":")[2])
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, lines):
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            if any(os.readlink(entry) in inodes for entry in (process / "fd").iterdir()):
                return int(process.name)
        except OSError:
            continue
    return None
