#!/usr/bin/env python3
"""Tries a router with three nodes on loopback ports, one of which is killed under load and restarted.

    fleet/try.py haproxy|litellm|ray [--orind target/release/orind] [--requests 300]

Every answer must be the one that a node gives alone. A failed request is retried by the router or, if its answer had begun,
by its client; client retries are counted. The router's program must be on the PATH (haproxy, litellm), or its package in this
Python (ray).
"""

import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
PORTS = [8001, 8002, 8003]
MODEL = "synthetic:tiny-llama:q8_0"
KEY = "sk-only-for-this-trial"


def ask(url, body=None, headers=None, timeout=60):
    """Returns status and body; status 0 if there is no answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", **(headers or {})})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, None
    except (OSError, ValueError):
        return 0, None


def until(what, happened, seconds=120):
    end = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > end:
            sys.exit(f"waited for: {what}")
        time.sleep(0.05)


def request(number):
    text = f"Count from {number} on."
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 8}


class Nodes:
    def __init__(self, program, folder):
        self.program, self.folder, self.processes = program, pathlib.Path(folder), {}

    def start(self, port):
        command = [self.program, "--model", MODEL, "--socket", self.folder / f"{port}.sock", "--config", self.folder / f"{port}.toml"]
        (self.folder / f"{port}.toml").write_text(f"listen = '127.0.0.1:{port}'\nthreads = 1\nslots = 4\ncontext = 256\nqueue_limit = 64\n")
        log = open(self.folder / f"{port}.log", "ab")
        self.processes[port] = subprocess.Popen([str(word) for word in command], stderr=log, stdout=log)

    def is_ready(self, port):
        return ask(f"http://127.0.0.1:{port}/health", timeout=2)[0] == 200

    def kill(self, port):
        process = self.processes.pop(port)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def stop(self):
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            process.wait()


def alone(number):
    status, body = ask(f"http://127.0.0.1:{PORTS[0]}/v1/chat/completions", request(number))
    assert status == 200, status
    return body["choices"][0]["message"]["content"]


def through(router, nodes, options, folder):
    """Sends all requests through a router, and kills a node meanwhile."""
    if router == "haproxy":
        command, url, headers = ["haproxy", "-f", HERE / "haproxy.cfg"], "http://127.0.0.1:8000/v1", {}
        up = lambda: ask("http://127.0.0.1:8000/health", timeout=2)[0] == 200
        change = lambda body: body
    else:
        command, url = ["litellm", "--config", folder / "litellm.yaml", "--port", "4000"], "http://127.0.0.1:4000/v1"
        # LiteLLM requires the provider's model name; for orind it is the id of the loaded model.
        text = (HERE / "litellm.yaml").read_text().replace('"openai/"', f'"openai/{MODEL}"')
        (folder / "litellm.yaml").write_text(text)
        headers = {"Authorization": f"Bearer {KEY}"}
        up = lambda: ask("http://127.0.0.1:4000/health/liveliness", timeout=2)[0] == 200
        change = lambda body: {**body, "model": "chat"}
    environment = {**os.environ, "ORIND_TOKEN": "none", "LITELLM_MASTER_KEY": KEY}
    log = open(folder / "router.log", "wb")
    process = subprocess.Popen([str(word) for word in command], stdout=log, stderr=log, env=environment)
    try:
        until(f"{router} serves", up)
        again, wrong, done = collections.Counter(), [], threading.Semaphore(0)

        def one(number):
            for _ in range(20):
                more = {**headers, "X-Conversation": f"c{number % 16}", "X-Request-Id": f"try-{number}"}
                status, body = ask(f"{url}/chat/completions", change(request(number)), more)
                if status == 200:
                    text = body["choices"][0]["message"]["content"]
                    if text != nodes.expected[number % 32]:
                        wrong.append((number, text))
                    done.release()
                    return
                again[status] += 1
                time.sleep(0.2)
            wrong.append((number, f"status {status}"))
            done.release()

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            for number in range(options.requests):
                pool.submit(one, number % 32)
            for at in range(options.requests):
                done.acquire()
                if at == options.requests // 3:
                    nodes.kill(PORTS[1])
                    print(f"killed node {PORTS[1]} after {at} answers")
                if at == options.requests // 2:
                    nodes.start(PORTS[1])
        until("the node is back", lambda: nodes.is_ready(PORTS[1]))
        before = served(PORTS[1])
        time.sleep(6)
        for number in range(24):
            ask(f"{url}/chat/completions", change(request(number)), {**headers, "X-Conversation": f"new-{number}"})
        back = served(PORTS[1]) - before
        print(f"{options.requests} requests, {len(wrong)} wrong or unanswered, asked again by clients: {dict(again)}, "
              f"the node that came back has answered {back} of 24")
        if wrong or back == 0:
            sys.exit(f"{wrong[:3]}")
    finally:
        process.terminate()
        process.wait()


def served(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith("orind_generations_total "):
                return float(line.split()[1])
    return 0.0


def batch(nodes, options, folder):
    """Runs `batch.py` with three nodes, of which two are lost."""
    lines = [json.dumps({"custom_id": f"r{n}", "method": "POST", "url": "/v1/chat/completions", "body": request(n % 32)})
             for n in range(options.requests)]
    (folder / "in.jsonl").write_text("\n".join(lines) + "\n")
    out = folder / "out.jsonl"
    urls = [word for port in PORTS for word in ("--node", f"http://127.0.0.1:{port}")]
    command = [sys.executable, HERE / "batch.py", folder / "in.jsonl", out, *urls]
    process = subprocess.Popen([str(word) for word in command])
    count = lambda: len(out.read_text().splitlines()) if out.exists() else 0
    for port, part in [(PORTS[1], 3), (PORTS[2], 2)]:
        until("answers are written", lambda: count() >= options.requests // part or process.poll() is not None, 3600)
        nodes.kill(port)
        print(f"\nkilled node {port} after {count()} answers")
    if process.wait() != 0:
        sys.exit("batch.py has failed")
    answers = [json.loads(line) for line in out.read_text().splitlines()]
    assert [answer["custom_id"] for answer in answers] == [f"r{n}" for n in range(options.requests)], "out of order"
    wrong = [answer for n, answer in enumerate(answers)
             if answer["response"]["body"]["choices"][0]["message"]["content"] != nodes.expected[n % 32]]
    print(f"{options.requests} requests, {len(wrong)} wrong or unanswered, two of three nodes lost")
    if wrong:
        sys.exit(f"{wrong[:3]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("router", choices=["haproxy", "litellm", "ray"])
    parser.add_argument("--orind", default=HERE.parent / "target/release/orind")
    parser.add_argument("--requests", type=int, default=300)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        nodes = Nodes(options.orind, folder)
        try:
            for port in PORTS:
                nodes.start(port)
            until("three nodes are ready", lambda: all(nodes.is_ready(port) for port in PORTS))
            nodes.expected = [alone(number) for number in range(32)]
            if options.router == "ray":
                batch(nodes, options, folder)
            else:
                through(options.router, nodes, options, folder)
        finally:
            nodes.stop()


if __name__ == "__main__":
    main()
