"""OpenPI's protocol: recorded frames, the published client, hostile clients, limits."""

import base64
import contextlib
import io
import os
import random
import socket
import struct
import subprocess
import sys
import threading
import time
import unittest
import warnings

import support
from support import POLICY, numpy, orind
from orind.openpi import LoopPolicy, NetworkPolicy, Policy, Server, msgpack
from orind.openpi.__main__ import main

try:
    from openpi_client import websocket_client_policy
except ImportError:
    websocket_client_policy = None

# Written by openpi-client 0.1.2 for an observation of `observation/state` (12 f64: the example of the policy),
# `observation/image` (2x2x3 u8), `prompt`, and two scalars of NumPy.
RECORDED = bytes.fromhex(
    "85b16f62736572766174696f6e2f737461746584c40b5f5f6e6461727261795f5fc3c40464617461c460000000c065f67bbf000000c000bdf03f"
    "000000a017bbe73f000000e0a62ae73f000000e081e6f93f00000060f749f3bf000000e00410e4bf000000c06f21f5bf00000020ab95bbbf0000"
    "0040dff5ef3f000000c0817996bf000000c07fbcdf3fc4056474797065a33c6638c4057368617065910cb16f62736572766174696f6e2f696d61"
    "676584c40b5f5f6e6461727261795f5fc3c40464617461c40c000102030405060708090a0bc4056474797065a37c7531c4057368617065930202"
    "03a670726f6d7074af7069636b2075702074686520637570a47374657083c40d5f5f6e7067656e657269635f5fc3c40464617461cb3ff8000000"
    "000000c4056474797065a33c6634a4646f6e6583c40d5f5f6e7067656e657269635f5fc3c40464617461c2c4056474797065a37c6231")


class Echo(Policy):
    def __init__(self, seconds=0.0):
        super().__init__()
        self.seconds = seconds

    def infer(self, observation, timeout):
        time.sleep(self.seconds)
        if "fail" in observation:
            raise ValueError("as requested")
        return {"size": len(observation)}

    def metadata(self):
        return {"name": "echo"}


class Client:
    """A WebSocket client that can also send what no client should."""

    def __init__(self, address, headers="", path="/"):
        self.socket = socket.create_connection(address, timeout=10)
        self.file = self.socket.makefile("rb")
        self.headers = {}
        try:
            self.handshake(path, headers)
        except BaseException:
            self.close()
            raise

    def handshake(self, path, headers):
        key = base64.b64encode(bytes(16)).decode()
        self.socket.sendall((f"GET {path} HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                             f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n{headers}\r\n").encode())
        line = self.file.readline().split()
        if not line:
            raise ConnectionError("the server closed the connection")
        self.status = int(line[1])
        for line in iter(self.file.readline, b"\r\n"):
            name, _, value = line.decode().partition(":")
            self.headers[name.lower()] = value.strip()

    def send(self, data, code=2, final=True, masked=True):
        size = bytes([(0x80 if masked else 0) | min(len(data), 126)]) if len(data) < 126 else \
            struct.pack(">BQ", (0x80 if masked else 0) | 127, len(data))
        mask = b"\x01\x02\x03\x04" if masked else b""
        body = bytes(b ^ mask[i % 4] for i, b in enumerate(data)) if masked else data
        self.socket.sendall(bytes([(0x80 if final else 0) | code]) + size + mask + body)

    def receive(self):
        head = self.file.read(2)
        if len(head) < 2:
            return None, b""
        size = head[1] & 127
        if size > 125:
            size, = struct.unpack(">H" if size == 126 else ">Q", self.file.read(2 if size == 126 else 8))
        return head[0] & 15, self.file.read(size)

    def ask(self, observation):
        self.send(msgpack.pack(observation))
        kind, data = self.receive()
        return msgpack.unpack(data) if kind == 2 else data.decode()

    def close(self):
        self.file.close()
        self.socket.close()


class Protocol(unittest.TestCase):
    def serve(self, policy, **options):
        server = Server(policy, port=0, **options)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(server.close)
        return server

    def connect(self, server, **options):
        client = Client(server.address, **options)
        self.addCleanup(client.close)
        return client

    def open(self, policy, **options):
        client = self.connect(self.serve(policy, **options))
        self.assertEqual(client.status, 101)
        return client, msgpack.unpack(client.receive()[1])

    def loop(self):
        end = time.monotonic() + 10
        while True:
            try:
                loop = support.daemon().client.control_loop("policy")
                self.addCleanup(loop.close)
                return loop
            except orind.APIError as error:
                if "in use" not in error.message or time.monotonic() > end:
                    raise
                time.sleep(0.01)

    def check(self, actions, shape=(4,)):
        got = actions.tensor() if isinstance(actions, msgpack.Array) else orind.Tensor.of(actions)
        self.assertEqual(got.shape, shape)
        for value, want in zip(got.memory.tolist(), support.example()[1]):
            self.assertAlmostEqual(value, want, places=5)

    def test_recorded_frames_step_a_control_loop(self):
        policy = LoopPolicy(self.loop(), {"observation": "observation/state"}, {"action": "actions"})
        client, metadata = self.open(policy)
        self.assertEqual(metadata["inputs"], {"observation/state": [1, 12]})
        self.assertEqual(metadata["outputs"], {"actions": [1, 4]})
        for round_ in range(3):
            client.send(RECORDED)
            kind, data = client.receive()
            self.assertEqual(kind, 2)
            answer = msgpack.unpack(data)
            self.check(answer["actions"])
            self.assertGreater(answer["server_timing"]["infer_ms"], 0)
            self.assertEqual("prev_total_ms" in answer["server_timing"], round_ > 0)

    def test_a_restarted_daemon_is_connected_again(self):
        other = support.Daemon(support.LOOPS)
        self.addCleanup(other.stop)
        loop = other.client.control_loop("policy")
        policy = LoopPolicy(loop)
        observation = {"observation": support.example()[0]}
        self.check(policy.infer(observation, 5)["action"])
        other.kill()
        with self.assertRaises(orind.ConnectError):
            for _ in range(3):
                policy.infer(observation, 5)
        with self.assertRaises(orind.ConnectError):
            policy.infer(observation, 5)
        other.start()
        other.wait()
        self.check(policy.infer(observation, 5)["action"])
        policy._loop.close()

    def test_a_network_of_the_daemon(self):
        policy = NetworkPolicy(support.daemon().client, POLICY, {"observation": [0, 12]})
        client, metadata = self.open(policy, metadata={"robot": "arm"})
        self.assertEqual((metadata["robot"], metadata["inputs"]), ("arm", {"observation": [0, 12]}))
        observation = support.example()[0]
        self.check(client.ask({"observation": observation})["action"])
        self.check(client.ask({"observation": [observation]})["action"], (1, 4))
        self.check(client.ask({"observation": orind.Tensor.of([observation])})["action"], (1, 4))
        self.assertIn("[11], not [0, 12]", client.ask({"observation": observation[1:]}))
        self.assertEqual(client.receive(), (8, b"\x03\xf3the previous message has the error"))

    @unittest.skipIf(websocket_client_policy is None or numpy is None, "openpi-client is not installed")
    def test_the_published_client(self):
        policy = LoopPolicy(self.loop(), {"observation": "state"}, {"action": "actions"})
        server = self.serve(policy, key="secret")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of websockets, about openpi-client
            client = websocket_client_policy.WebsocketClientPolicy(*server.address, api_key="secret")
        self.addCleanup(client._ws.close)
        self.assertEqual(client.get_server_metadata()["control_loop"], "policy")
        for kind in ("f4", "f8", "f2"):
            actions = client.infer({"state": numpy.array(support.example()[0], kind), "prompt": "a cup",
                                    "image": numpy.zeros((480, 640, 3), "u1")})["actions"]
            numpy.testing.assert_allclose(actions, support.example()[1], atol=1e-5 if kind != "f2" else 1e-3)
        with self.assertRaises(RuntimeError) as caught:
            client.infer({"other": numpy.zeros(3)})
        self.assertIn("the observation has no state; it has other", str(caught.exception))

    def test_fragments_pings_and_close(self):
        client, _ = self.open(Echo())
        data = msgpack.pack({"a": 1})
        client.send(data[:3], final=False)
        client.send(b"alive?", code=9)
        client.send(data[3:], code=0)
        self.assertEqual(client.receive(), (10, b"alive?"))
        self.assertEqual(msgpack.unpack(client.receive()[1])["size"], 1)
        client.send(struct.pack(">H", 1000), code=8)
        self.assertEqual(client.receive(), (8, struct.pack(">H", 1000)))
        self.assertEqual(client.receive()[0], None)

    def test_violations_close_the_connection(self):
        for code, send in [(1002, dict(data=b"x", masked=False)), (1002, dict(data=b"x", code=0)),
                           (1002, dict(data=b"x", code=3)), (1002, dict(data=b"x" * 200, code=9)),
                           (1002, dict(data=b"x", code=0x42)), (1009, dict(data=b"x" * 5000))]:
            client, _ = self.open(Echo(), max_message=4096)
            client.send(**send)
            kind, data = client.receive()
            self.assertEqual((kind, struct.unpack(">H", data[:2])[0]), (8, code), send)

    def test_observations_that_are_none(self):
        for data, code in [(b"", 2), (b"\xc1", 2), (b"\x93\x01", 2), (b"\x01", 2), (msgpack.pack({"fail": 1}), 2),
                           (b"text", 1), (b"\x91" * 5000, 2)]:
            client, _ = self.open(Echo())
            client.send(data, code=code)
            kind, text = client.receive()
            self.assertEqual(kind, 1, (data, text))
            self.assertEqual(client.receive()[1][:2], struct.pack(">H", 1011))

    def test_handshakes(self):
        server = self.serve(Echo(), key="secret")
        for headers, path, status in [("", "/", 401), ("Authorization: Api-Key other\r\n", "/", 401), ("", "/healthz", 200),
                                      ("Authorization: Api-Key secret\r\n", "/", 101),
                                      ("Authorization: Bearer secret\r\n", "/", 101),
                                      ("Origin: http://evil\r\nAuthorization: Api-Key secret\r\n", "/", 403),
                                      ("X: " + "x" * 20000 + "\r\n", "/", 431)]:
            self.assertEqual(self.connect(server, headers=headers, path=path).status, status, headers[:40])
        client = self.connect(server, headers="Authorization: Api-Key secret\r\n")
        self.assertEqual(client.headers["sec-websocket-accept"], "ICX+Yqv66kxgM0FcWaLWlFLwTAI=")
        with socket.create_connection(server.address) as plain:
            plain.sendall(b"POST / HTTP/1.1\r\n\r\n")
            self.assertIn(b"405", plain.recv(100))
        with self.assertRaises(ValueError):
            Server(Echo(), host="0.0.0.0")

    def test_limits_on_time_and_connections(self):
        server = self.serve(Echo(0.2), deadline=0.05, message_seconds=0.2, max_connections=2)
        client = self.connect(server)
        client.receive()
        self.assertIn("longer than 0.05 s", client.ask({}))
        slow = self.connect(server)
        slow.receive()
        slow.socket.sendall(b"\x82")  # the beginning of a message
        self.assertEqual(slow.receive()[1][:2], struct.pack(">H", 1002))
        silent = socket.create_connection(server.address)
        self.addCleanup(silent.close)
        silent.settimeout(5)
        self.assertEqual(silent.recv(1), b"")
        open_ = self.serve(Echo(), max_connections=1)
        self.connect(open_).receive()
        with self.assertRaises(ConnectionError):
            self.connect(open_)

    def test_a_deadline_cancels_the_run_in_the_daemon(self):
        with support.Impostor(b"", hold=True) as server:
            policy = NetworkPolicy(orind.Client(server.path), "policy", {"observation": [1, 12]})
            client, _ = self.open(policy, deadline=0.1)
            self.assertIn("Timeout", client.ask({"observation": [0.0] * 12}))


class Messages(unittest.TestCase):
    def test_masks_are_removed(self):
        from orind.openpi import websocket

        seeded = random.Random(3)
        for size in [0, 1, 3, 4, 5, 1000, websocket.PART - 1, websocket.PART, websocket.PART + 3, 3 * websocket.PART + 2]:
            data, mask = bytes(seeded.getrandbits(8) for _ in range(size)), bytes([1, 0, 254, 7])
            self.assertEqual(websocket._unmask(data, mask), bytes(b ^ mask[i % 4] for i, b in enumerate(data)))

    def test_values_survive(self):
        for value in [None, True, False, 0, 127, 128, -1, -33, 1 << 40, (1 << 64) - 1, -(1 << 63), 1.5, "", "x" * 300, [],
                      [1, [2, "a"]], {}, {"a": {"b": [None]}}, {1: 2}]:
            self.assertEqual(msgpack.unpack(msgpack.pack(value)), value)
        self.assertEqual(bytes(msgpack.unpack(msgpack.pack(b"ab"))), b"ab")
        self.assertEqual(msgpack.unpack(b"\xcd\x01\x00"), 256)
        self.assertEqual(msgpack.unpack(b"\x82\xa1a\x01\xa1b\x92\xe0\xca\x3f\xc0\x00\x00"), {"a": 1, "b": [-32, 1.5]})
        with self.assertRaises(TypeError):
            msgpack.pack(object())

    def test_arrays_are_converted_with_and_without_numpy(self):
        for code, dtype in [("e", "f2"), ("f", "f4"), ("d", "f8"), ("b", "i1"), ("B", "u1"), ("q", "i8"), ("?", "b1"), ("H", "u2")]:
            for order in "<>":
                data = struct.pack(f"{order}6{code}", *([True] * 6 if code == "?" else range(6)))
                array = msgpack.Array(order + dtype, (2, 3), memoryview(data))
                expected = [[1.0] * 3] * 2 if code == "?" else [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
                self.assertEqual(array.tensor().tolist(), expected)
                self.assertEqual(array._converted().tolist(), expected)

    def test_damaged_messages_are_refused(self):
        seeded = random.Random(7)
        for _ in range(3000):
            data = bytearray(RECORDED)
            for _ in range(seeded.randrange(1, 6)):
                data[seeded.randrange(len(data))] = seeded.randrange(256)
            cut = bytes(data[:seeded.choice([len(data), seeded.randrange(len(data))])])
            with contextlib.suppress(msgpack.Invalid):
                msgpack.unpack(cut)
        wrong = {b"__ndarray__": True, b"dtype": "<f4", b"shape": [2], b"data": b"1234"}
        for change in [{}, {b"dtype": "|O"}, {b"dtype": 3}, {b"shape": [-1]}, {b"shape": [1.0]}, {b"shape": 1},
                       {b"data": "1234"}, {b"shape": [1 << 60, 1 << 60]}, {b"shape": [1] * 40}]:
            with self.assertRaises(msgpack.Invalid, msg=change):
                msgpack.unpack(msgpack.pack({**wrong, **change}))
        with self.assertRaises(msgpack.Invalid):
            msgpack.unpack(b"\xdd\x00\x10\x00\x00" + b"\xc0" * (1 << 20))


class Command(unittest.TestCase):
    def refused(self, *arguments):
        with self.assertRaises(SystemExit) as caught, contextlib.redirect_stderr(io.StringIO()) as printed:
            main(["--daemon", support.daemon().socket, "--port", "0", *arguments])
        return f"{caught.exception.code} {printed.getvalue()}"

    def test_wrong_arguments(self):
        self.assertIn("required", self.refused())
        self.assertIn("--shape", self.refused("--model", POLICY))
        self.assertIn("NAME=1,12", self.refused("--model", POLICY, "--shape", "x"))
        self.assertIn("NAME=KEY", self.refused("--loop", "policy", "--input", "x"))
        self.assertIn("other", self.refused("--loop", "other"))
        self.assertIn("key is required", self.refused("--model", POLICY, "--shape", "o=1", "--host", "0.0.0.0"))

    def test_the_command_serves(self):
        environment = {**os.environ, "PYTHONPATH": os.path.join(support.ROOT, "python")}
        process = subprocess.Popen(
            [sys.executable, "-m", "orind.openpi", "--daemon", support.daemon().socket, "--port", "0", "--model", POLICY,
             "--shape", "observation=1,12", "--input", "observation=state", "--output", "action=actions"],
            env=environment, stderr=subprocess.PIPE, text=True)
        try:
            port = int(process.stderr.readline().rsplit(":", 1)[1])
            client = Client(("127.0.0.1", port))
            client.receive()
            answer = client.ask({"state": support.example()[0]})
            self.assertEqual(answer["actions"].shape, (4,))
            client.close()
        finally:
            process.terminate()
            process.wait()
            process.stderr.close()


if __name__ == "__main__":
    unittest.main()
