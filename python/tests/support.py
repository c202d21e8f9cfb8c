"""The daemon and models that the tests share. `ORIND_BIN` names the folder with the program `orind`."""

import atexit
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DATA = os.path.join(ROOT, "tests", "data")
MODEL = os.path.join(DATA, "models", "tiny-qwen3-Q8_0.gguf")
POLICY = os.path.join(DATA, "lanes", "policy.onnx")
sys.path.insert(0, os.path.join(ROOT, "python"))

import orind  # noqa: E402

try:
    import numpy
except ImportError:
    numpy = None

needs_numpy = unittest.skipIf(numpy is None, "numpy is not installed")


def example():
    """An observation of the policy and the action that numpy computed for it."""
    with open(os.path.join(DATA, "lanes", "policy.json")) as file:
        values = json.load(file)
    return values["observation"], values["action"]


def program():
    """Path of `orind`, or None."""
    target = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
    folders = [os.environ["ORIND_BIN"]] if "ORIND_BIN" in os.environ else [
        os.path.join(target, profile) for profile in ("debug", "release", "dist")]
    return next((path for path in (os.path.join(folder, "orind") for folder in folders) if os.path.exists(path)), None)


def state(path):
    """State of a thread, from its file `stat`."""
    with open(path) as file:
        return file.read().rpartition(")")[2].split()[0]


class Daemon:
    """A daemon with a folder of its own, stopped when the tests end."""

    def __init__(self, config, model=MODEL, wait=True, environment=None):
        if program() is None:
            raise unittest.SkipTest("no program orind: build it, or name its folder in ORIND_BIN")
        self.folder = tempfile.mkdtemp(prefix="orind-py-")
        atexit.register(self.stop)
        self.socket = os.path.join(self.folder, "s")
        settings = f"""
model = "{model}"
backend = "cpu"
threads = 1
slots = 2
context = 2048
tune = "off"
network_root = "{ROOT}"
ioctl_filter = "off"
{config}"""
        with open(os.path.join(self.folder, "orind.toml"), "w") as file:
            file.write(settings)
        names = ("XDG_RUNTIME_DIR", "XDG_CACHE_HOME", "XDG_DATA_HOME", "HOME")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("ORIND_")}
        self.environment = {**inherited, **{name: self.folder for name in names}, **(environment or {})}
        self.log = open(os.path.join(self.folder, "log"), "w+")
        self.start()
        self.client = orind.Client(self.socket, timeout=60)
        if wait:
            self.wait()

    def start(self):
        """Starts the program, also again after its end."""
        self.process = subprocess.Popen(
            [program(), "--config", os.path.join(self.folder, "orind.toml"), "--socket", self.socket],
            env=self.environment, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)

    def kill(self):
        """Ends the program without notice."""
        self.process.kill()
        self.process.wait()

    def wait(self):
        """Waits until the model is loaded; fails with the log if the daemon ends."""
        end = time.monotonic() + 60
        while not self.client.health():
            if self.process.poll() is not None or time.monotonic() > end:
                self.log.seek(0)
                raise AssertionError(f"the daemon did not start:\n{self.log.read()}")
            time.sleep(0.02)

    def pause(self):
        """Stops all threads of the daemon, until it gets SIGCONT."""
        self.process.send_signal(signal.SIGSTOP)
        tasks = f"/proc/{self.process.pid}/task"
        while any(state(f"{tasks}/{task}/stat") != "T" for task in os.listdir(tasks)):
            time.sleep(0.001)

    def stop(self):
        if self.process.poll() is None:
            self.kill()
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)


_shared = {}

LOOPS = f"""
[[lane]]
name = "policy"
network = "{POLICY}"
rate_hz = 200
deadline_us = 2000000
shapes = {{ observation = [1, 12] }}

[[lane]]
name = "awake"
network = "{POLICY}"
deadline_us = 1
spin_us = 2000
shapes = {{ observation = [1, 12] }}
"""


def daemon():
    """The daemon that most tests share: a tiny model and two control loops."""
    if "daemon" not in _shared:
        port = free_port()
        _shared["daemon"] = Daemon(f'listen = "127.0.0.1:{port}"\n' + LOOPS)
        _shared["daemon"].port = port
    return _shared["daemon"]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def with_metadata(source, target, key, value):
    """Copies a GGUF file and adds an integer to its metadata. A text beside it preserves the alignment of the tensors."""
    with open(source, "rb") as file:
        data = file.read()
    def text(content):
        return struct.pack("<Q", len(content)) + content
    added = text(key.encode()) + struct.pack("<II", 4, value)
    pad = -(len(added) + 8 + 4 + 8) % 32
    pad += 32 if pad < 6 else 0
    added += text(b"filler") + struct.pack("<I", 8) + text(b"x" * (pad - 6))
    assert len(added) % 32 == 0
    count, = struct.unpack_from("<Q", data, 16)
    with open(target, "wb") as file:
        file.write(data[:16] + struct.pack("<Q", count + 2) + added + data[24:])


def scripted(folder, texts):
    """Writes a model that says these texts; see tests/clients/scripted.py."""
    script, model = os.path.join(folder, "script.json"), os.path.join(folder, "scripted.gguf")
    with open(script, "w") as file:
        json.dump(texts, file)
    subprocess.run([sys.executable, os.path.join(ROOT, "tests", "clients", "scripted.py"), model, script], check=True)
    return model


class Impostor:
    """A server on a unix socket that answers each connection with given bytes."""

    def __init__(self, answer, hold=False):
        self.folder = tempfile.mkdtemp(prefix="orind-py-")
        self.path = os.path.join(self.folder, "s")
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen(8)
        self.held = []
        self.answer, self.hold = answer, hold
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            connection.recv(1 << 16)
            connection.sendall(self.answer)
            if self.hold:
                self.held.append(connection)
            else:
                connection.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.listener.close()
        for connection in self.held:
            connection.close()
        shutil.rmtree(self.folder, ignore_errors=True)
