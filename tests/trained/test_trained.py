"""Two trained models through the daemon: quality, chats, tools, formats, caches, many clients."""

import concurrent.futures
import json
import os
import subprocess
import sys
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "python", "tests"))

import support  # noqa: E402
from support import orind  # noqa: E402

DATA = os.path.join(ROOT, "tests", "data", "trained")
TEXT = os.path.join(DATA, "declaration.txt")
with open(os.path.join(DATA, "expected.json")) as file:
    EXPECTED = json.load(file)


def path(model):
    """Path of a model that .ci/trained has fetched."""
    file = os.path.join(os.environ.get("ORIND_TRAINED", ""), model)
    if not os.path.exists(file):
        raise unittest.SkipTest(f"{model} is not there: run .ci/trained")
    return file


daemons = {}


def client(model):
    """A client of a daemon that serves a model; both live until the tests end."""
    if model not in daemons:
        environment = {"ORIND_SLOTS": "8", "ORIND_THREADS": "2", "ORIND_QUEUE_LIMIT": "128"}
        daemons[model] = support.Daemon("", model=path(model), environment=environment)
    return orind.Client(daemons[model].socket, timeout=600)


class Quality(unittest.TestCase):
    def check(self, model):
        program = os.path.join(os.path.dirname(support.program()), "orinctl")
        ran = subprocess.run([program, "perplexity", TEXT, "-m", path(model), "--json"], capture_output=True, text=True, timeout=900)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        ours = json.loads(ran.stdout)["models"][0]["perplexity"]["mean"]
        theirs = EXPECTED["perplexity"][model]
        self.assertLess(abs(ours / theirs - 1), 0.01, f"{ours}, llama.cpp: {theirs}")

    def test_perplexity_of_smollm2_is_llama_cpps(self):
        self.check("smollm2.gguf")

    def test_perplexity_of_gemma3_is_llama_cpps(self):
        self.check("gemma3.gguf")


class Answers(unittest.TestCase):
    def test_greedy_answers(self):
        for question, model, expected in EXPECTED["answers"]:
            with self.subTest(question=question, model=model):
                answer = client(model).chat(question, temperature=0, max_tokens=24)
                self.assertEqual(answer.text, expected)

    def test_greedy_completions_are_llama_cpps(self):
        """The first token that differs may be one that both models rate almost the same."""
        for model, prompt, expected in EXPECTED["completions"]:
            with self.subTest(prompt=prompt, model=model):
                made = client(model).generate(prompt, temperature=0, max_tokens=24).text
                same = os.path.commonprefix([made, expected])
                self.assertGreaterEqual(len(same), len(expected) // 4, f"{made!r}, llama.cpp: {expected!r}")

    def test_a_tool_is_called_and_its_result_used(self):
        smollm = client("smollm2.gguf")

        def weather(city: str) -> dict:
            """Returns the weather of a city."""
            return {"city": city, "sky": "clear", "celsius": 21}

        question = [{"role": "user", "content": "What is the weather in Paris?"}]
        answer = smollm.chat(question, tools=[weather], tool_choice="required", temperature=0, max_tokens=80)
        self.assertEqual(answer.finish_reason, "tool_calls")
        [call] = answer.tool_calls
        self.assertEqual(call.name, "weather")
        self.assertEqual(set(call.arguments), {"city"})
        history = question + [answer.message, call.answer(weather(**call.arguments))]
        last = smollm.chat(history, tools=[weather], tool_choice="none", temperature=0, max_tokens=40)
        self.assertTrue(last.text.strip())

    def test_answers_match_their_schema(self):
        schema = {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 20},
                "age": {"type": "integer", "minimum": 0, "maximum": 120},
                "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
            },
            "required": ["name", "age", "tags"],
            "additionalProperties": False,
        }
        for model in ("smollm2.gguf", "gemma3.gguf"):
            for seed in range(3):
                with self.subTest(model=model, seed=seed):
                    answer = client(model).chat("Invent a person.", json_schema=schema, temperature=1, seed=seed, max_tokens=200)
                    person = answer.json()
                    self.assertEqual(list(person), ["name", "age", "tags"])
                    self.assertLessEqual(len(person["name"]), 20)
                    self.assertIn(person["age"], range(121))
                    self.assertLessEqual(set(person["tags"]), {"a", "b"})

    def test_a_second_turn_evaluates_only_what_is_new(self):
        smollm = client("smollm2.gguf")
        with open(TEXT) as file:
            text = file.read()[:4000]
        history = [{"role": "user", "content": text + "\n\nWho wrote this?"}]
        first = smollm.chat(history, temperature=0, max_tokens=16)
        history += [first.message, {"role": "user", "content": "When?"}]
        second = smollm.chat(history, temperature=0, max_tokens=4)
        self.assertGreater(second.usage.prompt, 700)
        self.assertLess(second.usage.prompt - second.usage.cached, 60)

    def test_drafts_change_no_token(self):
        smollm = client("smollm2.gguf")
        prompt = "one two three four five six seven eight\n" * 6 + "one two three"
        for seed, temperature in ((1, 0), (2, 0.7)):
            answers = [smollm.generate(prompt, temperature=temperature, seed=seed, max_tokens=48, draft_tokens=count) for count in (0, 7)]
            self.assertEqual(answers[0].text, answers[1].text)
        self.assertGreater(answers[1].usage.accepted, 0)


class Clients(unittest.TestCase):
    def test_64_mixed_clients_get_the_answers_of_lone_ones(self):
        smollm = client("smollm2.gguf")
        schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 99, "minimum": 0}}, "required": ["n"], "additionalProperties": False}

        def ask(at):
            kind, seed = at % 4, at // 4
            if kind == 0:
                return smollm.generate(f"Story {seed}: once upon a time", temperature=0, max_tokens=12).text
            if kind == 1:
                return smollm.chat(f"What is {seed} plus {seed}?", temperature=0.8, seed=seed, max_tokens=12).text
            if kind == 2:
                return smollm.chat(f"A number near {seed}?", json_schema=schema, temperature=0.8, seed=seed, max_tokens=24).text
            with smollm.chat_stream(f"Name {seed} things.", temperature=0, max_tokens=12) as stream:
                return "".join(delta.text for delta in stream)

        lone = [ask(at) for at in range(64)]
        with concurrent.futures.ThreadPoolExecutor(64) as pool:
            together = list(pool.map(ask, range(64)))
        self.assertEqual(lone, together)


if __name__ == "__main__":
    unittest.main()
