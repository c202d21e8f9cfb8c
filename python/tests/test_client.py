"""`orind.Client` on a real daemon, and on servers that answer wrongly."""

import array
import gc
import os
import threading
import time
import unittest
from unittest import mock

import support
from support import DATA, MODEL, POLICY, Daemon, Impostor, needs_numpy, numpy, orind


def setUpModule():
    support.daemon()


class Generation(unittest.TestCase):
    def setUp(self):
        self.client = support.daemon().client
        self.greedy = dict(max_tokens=12, temperature=0)

    def test_a_stream_has_the_text_of_the_whole_answer(self):
        whole = self.client.chat("hi", **self.greedy)
        with self.client.chat_stream("hi", **self.greedy) as stream:
            texts = [delta.text for delta in stream]
        self.assertEqual("".join(texts), whole.text)
        self.assertGreater(len(texts), 1)
        self.assertEqual(stream.answer.finish_reason, whole.finish_reason)
        self.assertEqual(stream.answer.usage.completion, whole.usage.completion)
        self.assertEqual(stream.answer.model, "tiny-qwen3-Q8_0")
        self.assertGreater(stream.answer.timings.total_ms, 0)
        self.assertEqual(whole.message, {"role": "assistant", "content": whole.text})

    def test_completions_take_text_and_tokens(self):
        tokens = self.client.tokenize("Once upon a time")
        self.assertEqual(self.client.detokenize(tokens), "Once upon a time")
        by_text = self.client.generate("Once upon a time", **self.greedy)
        self.assertEqual(self.client.generate(tokens, **self.greedy).text, by_text.text)
        self.assertEqual("".join(self.client.generate_stream(tokens, **self.greedy).texts()), by_text.text)
        self.assertEqual(len(self.client.generate("a", logprobs=2, max_tokens=3).logprobs["tokens"]), 3)

    def test_a_schema_constrains_the_answer(self):
        schema = {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"],
                  "additionalProperties": False}
        answer = self.client.chat("hi", json_schema=schema, max_tokens=40, temperature=0)
        self.assertIsInstance(answer.json()["on"], bool)

    def test_text_of_every_kind_is_sent(self):
        for text in ["\u00e9\u4e16\U0001f916", "half \ud83d a pair", "\u2028\x00\x7f"]:
            self.assertTrue(self.client.tokenize(text))
        self.assertEqual(self.client.detokenize(self.client.tokenize("half \ud83d a pair")), "half \ufffd a pair")
        with self.assertRaises(ValueError):
            self.client.chat("hi", temperature=float("nan"))

    def test_a_conversation_is_rendered(self):
        self.assertIn("hello there", self.client.render([{"role": "user", "content": "hello there"}]))

    def test_a_closed_stream_is_cancelled_in_the_daemon(self):
        def tokens():
            return self.client.metrics()["orind_completion_tokens_total"]
        before = tokens()
        with self.client.chat_stream("hi", max_tokens=1900, ignore_eos=True) as stream:
            next(stream)
        with self.assertRaises(orind.Closed):
            stream.result()
        self.idle()
        self.assertLess(tokens() - before, 1900)
        # An abandoned iteration, too, without the garbage collector.
        gc.disable()
        self.addCleanup(gc.enable)
        for _ in self.client.chat_stream("hi", max_tokens=1900, ignore_eos=True):
            break
        self.idle()
        self.assertLess(tokens() - before, 3800)

    def test_another_thread_may_close_a_stream(self):
        stream = self.client.generate_stream("hi", max_tokens=1900, ignore_eos=True)
        next(stream)
        self.assertEqual(self.client.status()["requests"]["active"], 1)
        timer = threading.Timer(0.05, stream.close)
        timer.start()
        with self.assertRaises(orind.Closed):
            stream.result()
        timer.join()
        self.idle()

    def test_a_stream_is_closed_before_its_first_token(self):
        with Impostor(b"", hold=True) as server:
            stream = orind.Client(server.path).chat_stream("hi")
            timer = threading.Timer(0.05, stream.close)
            timer.start()
            with self.assertRaises(orind.Closed):
                stream.result()
            timer.join()
        # In the daemon: while a prompt is evaluated.
        stream = self.client.generate_stream(f"{time.time()} {'a ' * 900}", max_tokens=400, ignore_eos=True)
        stream.close()
        with self.assertRaises(orind.Closed):
            next(stream)
        self.idle()

    def test_a_time_limit_ends_the_request(self):
        began = time.monotonic()
        with self.assertRaises(orind.Timeout):
            self.client.chat("hi", max_tokens=1900, ignore_eos=True, timeout=0.05)
        self.assertLess(time.monotonic() - began, 2)
        self.idle()

    def idle(self):
        end = time.monotonic() + 10
        while self.client.status()["requests"]["active"]:
            self.assertLess(time.monotonic(), end, "the daemon still generates")
            time.sleep(0.01)

    def test_threads_share_a_client(self):
        answers = []
        threads = [threading.Thread(target=lambda: answers.append(self.client.chat("hi", **self.greedy).text))
                   for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(answers, [self.client.chat("hi", **self.greedy).text] * 8)


class Tools(unittest.TestCase):
    CALL = '<tool_call>\n{{"name": "{}", "arguments": {}}}\n</tool_call>'

    @classmethod
    def setUpClass(cls):
        other = Daemon("", wait=False, model=support.scripted(
            support.daemon().folder, [cls.CALL.format("weather", '{"city": "Bern", "days": 2}'),
                                      cls.CALL.format("fails", "{}"), "It is sunny in Bern."]))
        cls.client = other.client
        other.wait()

    def test_functions_are_called_until_the_model_answers(self):
        asked = []

        def weather(city: str, days: int = 1) -> dict:
            """Returns the weather of a city."""
            asked.append((city, days))
            return {"sun": True}

        def fails() -> None:
            """Fails."""
            raise ValueError("no")

        answer = self.client.converse("Weather?", [weather, fails], temperature=0)
        self.assertEqual(answer.text, "It is sunny in Bern.")
        self.assertEqual(asked, [("Bern", 2)])
        cut = self.client.converse("Weather?", [weather, fails], temperature=0, turns=1)
        self.assertEqual(cut.tool_calls[0].name, "weather")

    def test_calls_are_streamed(self):
        def weather(city: str) -> None:
            """Returns the weather of a city."""

        with self.client.chat_stream("Weather?", tools=[weather], temperature=0) as stream:
            grown = [delta.tool_call.text for delta in stream if delta.tool_call]
        call = stream.answer.tool_calls[0]
        self.assertEqual((call.name, call.arguments), ("weather", {"city": "Bern", "days": 2}))
        self.assertEqual(grown[-1], call.text)
        self.assertEqual(stream.answer.finish_reason, "tool_calls")
        self.assertEqual(call.answer({"sun": True})["tool_call_id"], call.id)

    def test_a_function_is_described_by_its_annotations(self):
        from typing import Dict, List, Optional

        def move(joint: str, by: float, steps: List[int], fast: Optional[bool] = None, more: Dict[str, int] = {}) -> None:
            """Moves a joint."""

        function = orind.tool(move)["function"]
        self.assertEqual((function["name"], function["description"]), ("move", "Moves a joint."))
        self.assertEqual(function["parameters"]["required"], ["joint", "by", "steps"])
        self.assertEqual(function["parameters"]["properties"], {
            "joint": {"type": "string"}, "by": {"type": "number"}, "more": {"type": "object"},
            "steps": {"type": "array", "items": {"type": "integer"}}, "fast": {"type": "boolean"}})
        with self.assertRaises(TypeError):
            orind.tool(lambda *args: None)


class Models(unittest.TestCase):
    def setUp(self):
        self.client = support.daemon().client

    def test_a_model_is_loaded_beside_and_embeds(self):
        path = os.path.join(support.daemon().folder, "pooled.gguf")
        support.with_metadata(MODEL, path, "qwen3.pooling_type", 1)
        phases = []
        loaded = self.client.load(path, beside=True, name="embed", slots=2, context=64, progress=phases.append)
        self.assertEqual(loaded["architecture"], "qwen3")
        self.assertTrue(any(event["phase"] == "load" for event in phases), phases)
        self.assertIn("embed", [resident["name"] for resident in self.client.models().residents])
        rows = self.client.embed(["a cup", "a robot"], model="embed")
        one = self.client.embed("a robot", model="embed")
        self.assertEqual(rows.shape[1:], one.shape)
        self.assertEqual(rows.row(1).tolist(), one.tolist())
        self.assertAlmostEqual(sum(x * x for x in one.tolist()), 1, places=4)
        self.assertEqual(self.client.embed("a robot", model="embed", dimensions=8).shape, (8,))
        self.assertTrue(self.client.unload("embed"))
        with self.assertRaises(orind.APIError) as caught:
            self.client.embed("a", model="embed")
        self.assertEqual((caught.exception.code, caught.exception.status), ("model_not_found", 404))
        with self.assertRaises(ValueError):
            self.client.embed([])

    def test_a_damaged_file_is_refused(self):
        path = os.path.join(support.daemon().folder, "damaged.gguf")
        with open(path, "wb") as file:
            file.write(b"GGUF")
        with self.assertRaises(orind.InvalidRequest) as caught:
            self.client.load(path, beside=True)
        self.assertEqual(caught.exception.code, "invalid_model")

    def test_state_and_metrics(self):
        self.assertTrue(self.client.health())
        self.assertEqual(self.client.status()["state"]["name"], "ready")
        self.assertIsNotNone(self.client.models().loaded)
        metrics = self.client.metrics()
        self.assertEqual(metrics["orind_slots"], metrics.value("orind_slots"))
        self.assertEqual(metrics.value("orind_model_ready", model="tiny-qwen3-Q8_0"), 1)
        self.assertIsNone(metrics.value("orind_model_ready", model="other"))
        with self.assertRaises(KeyError):
            metrics["orind_nothing"]


class Networks(unittest.TestCase):
    def setUp(self):
        self.client = support.daemon().client
        self.observation, self.action = support.example()

    def check(self, values):
        out = self.client.run(POLICY, {"observation": values})["action"]
        self.assertEqual(out.shape, (1, 4))
        for got, want in zip(out.row(0).tolist(), self.action):
            self.assertAlmostEqual(got, want, places=5)

    def test_inputs_may_be_lists_buffers_and_tensors(self):
        self.check([self.observation])
        flat = array.array("f", self.observation)
        self.check(orind.Tensor.of(flat).reshape((1, 12)))
        self.check(memoryview(flat).cast("B").cast("f", [1, 12]))

    @needs_numpy
    def test_inputs_may_be_arrays(self):
        for kind in (numpy.float32, numpy.float64):
            self.check(numpy.array([self.observation], kind))
        self.check(numpy.array([self.observation] * 2, numpy.float32).T[:, :1].T)

    def test_a_wrong_input_is_named(self):
        with self.assertRaises(orind.InvalidRequest) as caught:
            self.client.run(POLICY, {"observation": [[1.0]]})
        self.assertIn("observation", str(caught.exception))
        with self.assertRaises(ValueError):
            self.client.run(POLICY, {"observation": [[1.0], [1.0, 2.0]]})


class Errors(unittest.TestCase):
    def test_errors_have_code_field_hint_and_id(self):
        client = support.daemon().client
        with self.assertRaises(orind.InvalidRequest) as caught:
            client.chat("hi", temperature=9)
        error = caught.exception
        self.assertEqual((error.code, error.field, error.status), ("invalid_value", "temperature", 400))
        self.assertTrue(error.request_id.startswith("req_"), error.request_id)
        with self.assertRaises(orind.APIError) as caught:
            client.chat("hi", model="other")
        self.assertEqual(caught.exception.status, 404)
        self.assertIn(caught.exception.hint, str(caught.exception))
        with self.assertRaises(orind.APIError) as caught:
            client.request("GET", "/nothing")
        self.assertEqual(caught.exception.code, "route_not_found")
        with self.assertRaises(orind.InvalidRequest):
            next(client.chat_stream([]))

    def test_no_daemon(self):
        client = orind.Client("/nonexistent/s")
        with self.assertRaises(orind.ConnectError):
            client.status()
        self.assertFalse(client.health())
        with self.assertRaises(orind.Timeout):
            client.wait(0.1)

    def answer(self, text, hold=False):
        return Impostor(text.replace("\n", "\r\n").encode(), hold)

    def test_wrong_answers_are_errors_of_this_package(self):
        head = "HTTP/1.1 200 OK\ncontent-type: application/json\n"
        for text in ["", "nonsense\n\n", head + "content-length: 100\n\n{}", head + "content-length: 2\n\n{]",
                     head + "transfer-encoding: chunked\n\n5\n{", head + "transfer-encoding: chunked\n\nzz\n",
                     "HTTP/1.1 500 Oh\ncontent-length: 2\n\nno", "HTTP/1.1 500 Oh\ncontent-length: 1\n\n1"]:
            with self.answer(text) as server:
                with self.assertRaises(orind.OrindError, msg=text):
                    orind.Client(server.path, timeout=5).status()

    def test_a_stream_without_an_end_is_an_error(self):
        head = "HTTP/1.1 200 OK\ncontent-type: text/event-stream\nconnection: close\n\n"
        event = 'data: {"choices": [{"delta": {"content": "x"}}]}\n\n'
        for text in [event, event + ": waiting\n\n", event + "data: {\n\n", event + "data: 1\n\n", event + "event: error\n"
                     'data: {"error": {"code": "stopping", "message": "stops"}}\n\n']:
            with self.answer(head + text) as server:
                stream = orind.Client(server.path, timeout=5).chat_stream("hi")
                self.assertEqual(next(stream).text, "x")
                with self.assertRaises(orind.OrindError, msg=text):
                    stream.result()
        with self.answer(head + event + 'data: {"error": {"code": "stopping", "message": "stops"}}\n\n') as server:
            with self.assertRaises(orind.NotReady):
                orind.Client(server.path, timeout=5).chat_stream("hi").result()

    def test_a_silent_server_meets_the_time_limit(self):
        for text in ["", "HTTP/1.1 200 OK\n", "HTTP/1.1 200 OK\ncontent-length: 9\n\n{"]:
            with self.answer(text, hold=True) as server:
                began = time.monotonic()
                with self.assertRaises(orind.Timeout, msg=text):
                    orind.Client(server.path, timeout=0.2).status()
                self.assertLess(time.monotonic() - began, 2)

    def test_sizes_are_limited(self):
        from orind import transport

        head = "HTTP/1.1 200 OK\nconnection: close\n\n"
        with mock.patch.object(transport, "MAX_ANSWER", 100), self.answer(head + "x" * 200) as server:
            with self.assertRaises(orind.ProtocolError):
                orind.Client(server.path, timeout=5).status()
        with mock.patch.object(transport, "MAX_EVENT", 100), self.answer(head + "data: " + "x" * 200) as server:
            with self.assertRaises(orind.ProtocolError):
                list(orind.Client(server.path, timeout=5).events("GET", "/"))


class Addresses(unittest.TestCase):
    def test_forms(self):
        from orind.address import Address, parse

        self.assertEqual(parse("/run/s"), Address(path="/run/s"))
        self.assertEqual(parse("unix:///run/s").path, "/run/s")
        self.assertEqual(parse("orin:8080"), Address(host="orin", port=8080))
        self.assertEqual(parse("http://orin:8080/"), Address(host="orin", port=8080))
        self.assertEqual(parse("http://[::1]:8080"), Address(host="::1", port=8080))
        self.assertEqual(parse("https://orin"), Address(host="orin", port=443, tls=True))
        self.assertEqual(str(parse("tcp://[::1]:8080")), "http://[::1]:8080")
        for text in ["http://orin:99999", "ftp://orin:1", "tcp://orin", "http://orin:1/v1", "http://:80"]:
            with self.assertRaises(ValueError, msg=text):
                parse(text)

    def test_defaults_are_those_of_orinctl(self):
        with mock.patch.dict(os.environ, {"ORIND_SOCKET": "/some/where"}):
            self.assertEqual(orind.default_socket(), "/some/where")
        with mock.patch.dict(os.environ, {"XDG_RUNTIME_DIR": support.daemon().folder}), \
                mock.patch.object(os, "geteuid", return_value=1234):
            os.environ.pop("ORIND_SOCKET", None)
            own = os.path.join(support.daemon().folder, "orind.sock")
            service = "/run/orind/orind.sock"
            self.assertEqual(orind.default_socket(), service if os.path.exists(service) else own)
        with mock.patch.dict(os.environ, clear=True), mock.patch.object(os, "geteuid", return_value=0):
            self.assertEqual(orind.default_socket(), "/run/orind/orind.sock")

    def test_a_port_and_its_token(self):
        daemon = support.daemon()
        client = orind.Client(f"127.0.0.1:{daemon.port}", timeout=30)
        self.assertEqual(client.tokenize("hi"), daemon.client.tokenize("hi"))
        with self.assertRaises(ValueError):
            client.control_loop("policy")
        token = os.path.join(daemon.folder, "token")
        with open(token, "w") as file:
            file.write("correct-horse-battery")
        os.chmod(token, 0o600)
        port = support.free_port()
        guarded = Daemon(f'listen = "127.0.0.1:{port}"\ntoken_file = "{token}"')
        self.addCleanup(guarded.stop)
        with self.assertRaises(orind.APIError) as caught:
            orind.Client(f"127.0.0.1:{port}").status()
        self.assertEqual((caught.exception.code, caught.exception.status), ("unauthorized", 401))
        self.assertTrue(orind.Client(f"127.0.0.1:{port}", token="correct-horse-battery").status()["pid"])
        with mock.patch.dict(os.environ, {"ORIND_TOKEN": "correct-horse-battery\n"}):
            self.assertTrue(orind.Client(f"127.0.0.1:{port}").status()["pid"])


class Package(unittest.TestCase):
    def test_versions_are_equal(self):
        with open(os.path.join(support.ROOT, "Cargo.toml")) as cargo:
            self.assertIn(f'\nversion = "{orind.__version__}"\n', cargo.read())
        with open(os.path.join(support.ROOT, "python", "pyproject.toml")) as project:
            self.assertIn(f'\nversion = "{orind.__version__}"\n', project.read())

    def test_the_sources_are_those_of_python_3_8(self):
        import ast

        folder = os.path.join(support.ROOT, "python", "orind")
        files = [os.path.join(path, name) for path, _, names in os.walk(folder) for name in names if name.endswith(".py")]
        self.assertGreater(len(files), 8)
        for path in files:
            with open(path) as source:
                ast.parse(source.read(), path, feature_version=(3, 8))


if __name__ == "__main__":
    unittest.main()
