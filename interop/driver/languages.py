"""How a program of each language is installed, built and run."""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import threading
from collections import defaultdict
from pathlib import Path

from .session import run_quietly

INTEROP = Path(__file__).resolve().parent.parent
CACHE = INTEROP / ".cache"
IN_CI = os.environ.get("CI") == "true"
PREPARE_LIMIT_S = 900

apt_lock = threading.Lock()
apt_updated = False
# Two clients may share a folder.
prepare_locks = defaultdict(threading.Lock)


class Missing(Exception):
    """Tools are not on this machine and cannot be installed by us."""


class CannotPrepare(Exception):
    pass


class Client:
    """A folder with programs of one library. `programs` are the arguments of each, as the language takes them."""

    language = None
    # Command → Debian package that has it; the value None means that Debian's is of no use.
    tools = {}
    # Folders beside this one with what programs of that language share.
    shared = None
    # What else makes a build of its own.
    needs_sources = True

    def __init__(self, name, library, programs, framework=False, folder=None, tools=None, limit_s=None):
        self.name, self.library, self.programs, self.framework = name, library, programs, framework
        self.source = INTEROP / (folder or name)
        self.cache = CACHE / (folder or name)
        self.tools = {**self.tools, **(tools or {})}
        self.limit_s = limit_s

    def missing(self):
        return [tool for tool in self.tools if not has(tool)]

    def install(self):
        """Commands that install and build what `command` runs."""
        return []

    def command(self, program):
        raise NotImplementedError

    def environment(self):
        return {}

    def cwd(self):
        return self.source

    def lock(self):
        """Files that say what is installed: other contents, another build."""
        folders = [self.source, *([INTEROP / self.shared] if self.shared else [])]
        return sorted(file for folder in folders for file in folder.rglob("*") if file.is_file() and not ignored(file))

    def stamp(self):
        digest = hashlib.sha256(repr(self.install()).encode())
        for file in self.lock():
            digest.update(str(file.relative_to(INTEROP)).encode() + b"\0" + file.read_bytes())
        return digest.hexdigest()

    def prepare(self):
        """Makes it ready to run; quick if it was made ready before and nothing changed since."""
        ensure_tools(self)
        with prepare_locks[str(self.cache)]:
            self.prepare_folder()

    def prepare_folder(self):
        stamp = self.stamp()
        marked = self.cache / ".prepared"
        if marked.exists() and marked.read_text() == stamp:
            return
        self.cache.mkdir(parents=True, exist_ok=True)
        self.before_install()
        for command in self.install():
            code, output = run_quietly(list(map(str, command)), self.source, {**os.environ, **self.environment()}, PREPARE_LIMIT_S)
            if code != 0:
                raise CannotPrepare(f"{output[-3000:]}\ninstalling it failed: {' '.join(map(str, command))}")
        marked.write_text(stamp)

    def before_install(self):
        pass


def ignored(file):
    return any(part in ("target", "node_modules", "__pycache__") for part in file.parts)


def has(tool):
    """A command, a library (`python:…`, `perl:…`, `php:…`, `ruby:…`), or a file."""
    kind, _, name = tool.rpartition(":")
    if kind == "python":
        return importlib.util.find_spec(name) is not None
    if kind == "perl":
        return bool(shutil.which("perl")) and subprocess.run(["perl", f"-M{name.replace('.', '::')}", "-e", "1"], stderr=subprocess.DEVNULL).returncode == 0
    if kind == "php":
        return bool(shutil.which("php")) and name in subprocess.run(["php", "-m"], stdout=subprocess.PIPE, text=True).stdout.split()
    if kind == "ruby":
        return bool(shutil.which("ruby")) and subprocess.run(["ruby", f"-r{name}", "-e", "1"], stderr=subprocess.DEVNULL).returncode == 0
    if tool.startswith("/"):
        return os.path.exists(tool)
    return bool(shutil.which(tool))


def ensure_tools(client):
    missing = client.missing()
    if not missing:
        return
    with apt_lock:
        missing = client.missing()
        if missing:
            install_packages([client.tools[tool] for tool in missing])
            missing = client.missing()
    if missing:
        raise Missing(f"not on this machine: {', '.join(missing)}")


def install_packages(packages):
    """As root on Debian in CI; elsewhere the machine stays as it is."""
    global apt_updated
    if not (IN_CI and os.geteuid() == 0 and shutil.which("apt-get") and all(packages)):
        return
    packages = sorted({package for some in packages for package in some.split()})
    print("installing", *packages, flush=True)
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    if not apt_updated:
        subprocess.run(["apt-get", "update", "-qq"], check=False, env=env)
        apt_updated = True
    subprocess.run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages], check=False, env=env, stdout=subprocess.DEVNULL)
    importlib.invalidate_caches()


class Python(Client):
    language = "Python"
    tools = {"python:ensurepip": "python3-venv"}
    shared = "python"

    def install(self):
        python = self.cache / "bin" / "python"
        return [
            [sys.executable, "-m", "venv", self.cache],
            [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--requirement", "requirements.txt"],
        ]

    def lock(self):
        return [self.source / "requirements.txt"]

    def command(self, program):
        return [self.cache / "bin" / "python", "-B", *program]

    def environment(self):
        return {"PYTHONPATH": str(INTEROP / "python"), "PYTHONUNBUFFERED": "1", "PATH": f"{self.cache}/bin:{os.environ['PATH']}"}


class Node(Client):
    language = "Node.js"
    tools = {"node": "nodejs", "npm": "npm"}
    shared = "node"

    def before_install(self):
        # A copy, so that node_modules stays out of the sources.
        for folder in (self.source, INTEROP / "node"):
            for file in folder.iterdir():
                if file.suffix in (".js", ".json", ".ts"):
                    shutil.copy(file, self.cache)

    def install(self):
        return [["npm", "ci", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", self.cache]]

    def cwd(self):
        return self.cache

    def command(self, program):
        return ["node", *program]


class Go(Client):
    language = "Go"
    tools = {"go": "golang-go"}

    def install(self):
        return [["go", "build", "-o", self.cache / "interop", "."]]

    def command(self, program):
        return [self.cache / "interop", *program]


class Java(Client):
    language = "Java"
    tools = {"java": "default-jdk-headless", "javac": "default-jdk-headless", "mvn": "maven"}

    def install(self):
        return [["mvn", "--batch-mode", "--quiet", "compile", "dependency:copy-dependencies"]]

    def command(self, program):
        return ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", f"{self.cache}/classes:{self.cache}/lib/*", *program]


class Rust(Client):
    language = "Rust"
    # No Debian package: stable Debian's compiler is too old.
    tools = {"cargo": None}

    def install(self):
        return [["cargo", "build", "--quiet", "--locked"]]

    def command(self, program):
        return ["cargo", "run", "--quiet", "--locked", "--", *program]


class C(Client):
    language = "C"
    tools = {"cc": "gcc libc6-dev", "/usr/include/amqp.h": "librabbitmq-dev"}

    def install(self):
        sources = sorted(file.name for file in self.source.glob("*.c"))
        return [["cc", "-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-O1", "-g", *sources, "-o", self.cache / "interop", "-lrabbitmq", "-lpthread"]]

    def command(self, program):
        return [self.cache / "interop", *program]


class Script(Client):
    """A program that its interpreter runs as it is, with the library from Debian."""

    def __init__(self, language, interpreter, name, library, programs, tools, **rest):
        self.language, self.interpreter = language, interpreter
        super().__init__(name, library, programs, tools=tools, **rest)

    def lock(self):
        return []

    def command(self, program):
        return [*self.interpreter, *program]
