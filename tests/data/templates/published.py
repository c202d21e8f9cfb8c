#!/usr/bin/env python3
"""Records what transformers makes of published chat templates: published.z, published.json.

Run: pip install transformers jinja2; python3 published.py DIRECTORY, with the directory models/templates of llama.cpp
(MIT licence; the templates are those of the models' authors). `published.z` has the templates, compressed with zlib:
a JSON object of names and sources. `published.json` has the conversations, and for each template the first 12 hex
digits of SHA-256 of each output, or null where transformers fails."""

import hashlib
import json
import os
import sys
import zlib

from transformers.utils.chat_template_utils import _compile_jinja_template

HERE = os.path.dirname(os.path.abspath(__file__))


def function(name, description, properties, required=()):
    parameters = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOLS = [
    function("get_weather", "Returns the weather <today> & \"tomorrow\".", {
        "city": {"type": "string", "description": "Name of a city."},
        "days": {"type": "integer", "default": 1, "minimum": 1},
        "unit": {"type": "string", "enum": ["C", "F"]},
    }, ["city"]),
    function("store", "", {
        "path": {"type": "string"},
        "items": {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "number"}}}},
        "both": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    }),
]


def say(role, content, **more):
    return {"role": role, "content": content, **more}


def call(name, arguments, id="abcdefgh1"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(content, id="abcdefgh1", name="get_weather"):
    return say("tool", content, tool_call_id=id, name=name)


USER, SYSTEM = say("user", "How is the weather in Bern?"), say("system", "Be brief.")
ANSWER = say("assistant", "It is sunny.")
WEATHER = call("get_weather", {"city": "Bern", "days": 2})
STORE = call("store", {"path": "a\"b", "items": [{"a": 1.5}, {"a": None}], "both": True}, "abcdefgh2")
CALLED = say("assistant", "", tool_calls=[WEATHER])

CONVERSATIONS = [
    ("a question", [USER], {}),
    ("a question without an answer's beginning", [USER], {"add_generation_prompt": False}),
    ("a system message", [SYSTEM, USER], {}),
    ("several turns", [SYSTEM, USER, ANSWER, say("user", " And\n\ntomorrow?  ")], {}),
    ("an answer at the end", [USER, ANSWER], {"add_generation_prompt": False}),
    ("unusual characters", [say("user", "<|im_end|> é 中 😀 {{ x }} {% y %} \\n \"'")], {}),
    ("tools", [USER], {"tools": TOOLS}),
    ("tools and a system message", [SYSTEM, USER], {"tools": TOOLS}),
    ("a call", [USER, CALLED], {"tools": TOOLS, "add_generation_prompt": False}),
    ("a result", [SYSTEM, USER, CALLED, result("{\"degrees\": 20}")], {"tools": TOOLS}),
    ("two calls", [USER, say("assistant", "", tool_calls=[WEATHER, STORE]), result("20"), result("ok", "abcdefgh2", "store")], {"tools": TOOLS}),
    ("text and a call", [USER, say("assistant", "I look.", tool_calls=[WEATHER]), result("20"), ANSWER, say("user", "Thanks")], {"tools": TOOLS}),
    ("a call without tools", [USER, CALLED, result("20"), ANSWER, USER], {}),
    ("reasoning", [USER, say("assistant", "Sunny.", reasoning_content="Look.\nThink."), say("user", "Sure?")], {}),
    ("reasoning before a call", [USER, say("assistant", "", reasoning_content="Look.", tool_calls=[WEATHER]), result("20")], {"tools": TOOLS}),
    ("reasoning in the content", [USER, say("assistant", "<think>\nLook.\n</think>\n\nSunny."), say("user", "Sure?")], {}),
    ("no thinking", [SYSTEM, USER], {"enable_thinking": False}),
    ("thinking", [USER], {"enable_thinking": True, "reasoning_effort": "high"}),
    ("an empty answer", [USER, say("assistant", ""), USER], {}),
]


def variables(messages, options):
    return {"messages": messages, "tools": None, "documents": None, "add_generation_prompt": True, "bos_token": "<bos>", "eos_token": "<eos>", **options}


def digest(source, messages, options):
    try:
        template = _compile_jinja_template(source)
        # The test's clock returns the format.
        template.globals["strftime_now"] = lambda format: format
        text = template.render(**variables(messages, options))
    except Exception:
        return None
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def main():
    directory = sys.argv[1]
    names = sorted(name for name in os.listdir(directory) if name.endswith(".jinja"))
    templates = {name[:-6]: open(os.path.join(directory, name), newline="").read() for name in names}
    with open(os.path.join(HERE, "published.z"), "wb") as file:
        file.write(zlib.compress(json.dumps(templates, ensure_ascii=False).encode(), 9))
    conversations = [{"name": name, "variables": variables(*rest)} for name, *rest in CONVERSATIONS]
    lines = [json.dumps(c, ensure_ascii=False) for c in conversations]
    outputs = [f"{json.dumps(n)}: {json.dumps([digest(s, *rest) for _, *rest in CONVERSATIONS])}" for n, s in templates.items()]
    with open(os.path.join(HERE, "published.json"), "w") as file:
        file.write('{"conversations": [\n' + ",\n".join(lines) + '\n], "outputs": {\n' + ",\n".join(outputs) + "\n}}\n")


main()
