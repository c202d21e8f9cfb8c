#!/usr/bin/env python3
"""Latency of a policy at 1 kHz next to a language model: as a control loop of the daemon, and by onnxruntime in the client.

    control_loop.py ORIND POLICY.onnx [SECONDS]

ORIND is a release build. Needs numpy and onnxruntime from PyPI. The language model MODEL (synthetic:llama-3.2-1b:q6_k)
runs on THREADS (1) cores. WAYS (all three) are:

- `asleep`: a control loop whose daemon thread and client sleep until they are woken;
- `awake`: a control loop whose daemon thread and client poll the shared memory;
- `onnxruntime`: in a thread of the client.

Each runs for SECONDS (60) with an idle daemon, during decode and during prompts of 2,000 tokens. A step begins when the
client stamps it and ends when the client has the action. Prints the number of steps later than DEADLINE_US (500), the
median, the 99.9th percentile and the maximum. The client and the `asleep` loop have real-time priorities if permitted.
"""
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np
import onnxruntime

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "python"))
import orind

program, policy = map(os.path.abspath, sys.argv[1:3])
SECONDS = float((sys.argv + ["60"])[3])
MODEL = os.environ.get("MODEL", "synthetic:llama-3.2-1b:q6_k")
THREADS = int(os.environ.get("THREADS", 1))
DEADLINE_US = int(os.environ.get("DEADLINE_US", 500))
folder = pathlib.Path(tempfile.mkdtemp())
daemon = folder / "s"
client = orind.Client(daemon)


class Loop:
    def __init__(self, name):
        self.loop = orind.ControlLoop(name, daemon)
        self.observation, self.action = self.loop.inputs["observation"].numpy(), self.loop.outputs["action"].numpy()
        self.awake = name == "awake"

    def step(self, observation):
        self.observation[:] = observation
        self.loop.step(spin=self.awake)
        return self.action[0].copy()


class Onnxruntime:
    def __init__(self):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(policy, options, providers=["CPUExecutionProvider"])

    def step(self, observation):
        return self.session.run(None, {"observation": observation[None]})[0][0]


def run(way):
    """Runs steps at 1 kHz and returns their times in microseconds."""
    times, due, end = [], time.monotonic(), time.monotonic() + SECONDS
    observation = np.zeros(12, np.float32)
    while due < end:
        time.sleep(max(0.0, due - time.monotonic()))
        observation[0] = np.sin(due)
        began = time.monotonic_ns()
        way.step(observation)
        times.append((time.monotonic_ns() - began) / 1e3)
        due += 1e-3
    return np.array(times)


def load_daemon(kind, stop):
    """Sends requests of a kind until `stop` is set."""
    prompt, tokens = ("word " * 2000, 1) if kind == "prompts" else ("word", 100)
    n = 0
    while kind != "nothing" and not stop.is_set():
        n += 1
        client.generate(f"{n} {prompt}", max_tokens=tokens)


(folder / "orind.toml").write_text(
    f"model = '{MODEL}'\nthreads = {THREADS}\nbackend = 'cpu'\nslots = 1\ncontext = 4096\n"
    + "".join(f"[[lane]]\nname = '{name}'\nnetwork = '{policy}'\ndeadline_us = {DEADLINE_US}\npriority = {priority}\nspin_us = {spin}\n"
              "shapes = { observation = [1, 12] }\n" for name, priority, spin in [("asleep", 50, 0), ("awake", 0, 2000)]))
process = subprocess.Popen([program, "--config", folder / "orind.toml", "--socket", daemon], stderr=subprocess.DEVNULL)
try:
    while True:
        try:
            status = client.status()
            if status["state"]["name"] == "ready" and all(lane["state"] == "ready" for lane in status["lanes"]):
                break
        except orind.ConnectError:
            pass
        time.sleep(0.2)
    peer = Onnxruntime()
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(40))
    except PermissionError:
        print("no permission for a real-time priority: times include waits for other threads", file=sys.stderr)
    observation = np.linspace(-1, 1, 12, dtype=np.float32)
    for name in ["asleep", "awake"]:
        assert np.allclose(Loop(name).step(observation), peer.step(observation), atol=1e-5)
    time.sleep(0.5)
    print(f"| load | way | steps | later than {DEADLINE_US} us | median, us | p99.9, us | maximum, us |\n|---|---|---|---|---|---|---|")
    for kind in ["nothing", "decode", "prompts"]:
        for name in os.environ.get("WAYS", "asleep,awake,onnxruntime").split(","):
            # The daemon stops polling for a control loop without a client.
            way = None
            time.sleep(0.2)
            way = peer if name == "onnxruntime" else Loop(name)
            stop = threading.Event()
            load = threading.Thread(target=load_daemon, args=(kind, stop), daemon=True)
            load.start()
            times = run(way)
            stop.set()
            load.join()
            late = int((times > DEADLINE_US).sum())
            print(f"| {kind} | {name} | {len(times)} | {late} | {np.median(times):.0f} | {np.quantile(times, 0.999):.0f} | {times.max():.0f} |", flush=True)
finally:
    process.terminate()
    process.wait()
