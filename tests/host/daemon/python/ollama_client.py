"""Checks the daemon with ollama's client. Arguments: socket or URL, id of the model."""

import json
import sys

import httpx
import ollama

where, model = sys.argv[1:]
over_tcp = where.startswith("http")
client = ollama.Client(
    host=where if over_tcp else "http://localhost",
    transport=None if over_tcp else httpx.HTTPTransport(uds=where),
    timeout=60,
)

assert [m.model for m in client.list().models] == [model]
shown = client.show(model)
assert "completion" in shown.capabilities and shown.details.format == "gguf"

options = {"temperature": 0, "num_predict": 6, "repeat_penalty": 1.1}
ask = dict(model=f"{model}:latest", messages=[{"role": "user", "content": "Hello"}], options=options)
whole = client.chat(**ask)
assert whole.done and whole.message.role == "assistant" and whole.done_reason in ["stop", "length"]
parts = list(client.chat(**ask, stream=True))
assert "".join(part.message.content or "" for part in parts) == whole.message.content
assert parts[-1].done and parts[-1].eval_count == whole.eval_count and not parts[0].done

said = client.generate(model=model, prompt="Hello", system="Be brief.", options=options)
parts = list(client.generate(model=model, prompt="Hello", system="Be brief.", options=options, stream=True))
assert "".join(part.response for part in parts) == said.response
assert client.generate(model=model).done_reason == "load"

place = {"type": "object", "properties": {"city": {"enum": ["Bern", "Rome"]}}, "required": ["city"],
         "additionalProperties": False}
options["num_predict"] = 60
said = client.chat(model=model, messages=ask["messages"], format=place, options=options)
assert json.loads(said.message.content)["city"] in ["Bern", "Rome"]
tools = [{"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": place}}]
messages = ask["messages"] + [
    {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "weather", "arguments": {"city": "Bern"}}}]},
    {"role": "tool", "content": "Sunny.", "tool_name": "weather"},
]
told = client.chat(model=model, messages=messages, tools=tools, options=options)
assert told.prompt_eval_count > whole.prompt_eval_count

for call in [
    lambda: client.chat(model="other", messages=ask["messages"]),
    lambda: client.generate(model=model, prompt="a", suffix="b"),
    lambda: client.embed(model=model, input="a"),
]:
    try:
        call()
    except ollama.ResponseError as error:
        assert error.status_code in [400, 404], error
    else:
        raise AssertionError("nothing was refused")
print("ok")
