"""Checks three dialects of the daemon with LiteLLM. Arguments: URL, id of the model."""

import json
import sys

import litellm

url, model = sys.argv[1:]
litellm.telemetry = False
litellm.suppress_debug_info = True
messages = [{"role": "user", "content": "Hello"}]
ask = dict(messages=messages, temperature=0, max_tokens=6, api_key="none", num_retries=0)
for provider, base in [("openai", f"{url}/v1"), ("anthropic", url), ("ollama_chat", url)]:
    there = dict(model=f"{provider}/{model}", api_base=base)
    whole = litellm.completion(**there, **ask)
    choice = whole.choices[0]
    assert choice.finish_reason in ["stop", "length"], (provider, choice)
    parts = list(litellm.completion(**there, **ask, stream=True))
    text = "".join(part.choices[0].delta.content or "" for part in parts)
    assert text == (choice.message.content or ""), (provider, text, choice.message.content)

place = {"type": "object", "properties": {"city": {"enum": ["Bern", "Rome"]}}, "required": ["city"],
         "additionalProperties": False}
tools = [{"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": place}}]
for provider, base in [("openai", f"{url}/v1"), ("anthropic", url)]:
    called = litellm.completion(model=f"{provider}/{model}", api_base=base, tools=tools, tool_choice="required",
                                **{**ask, "max_tokens": 60})
    (call,) = called.choices[0].message.tool_calls[:1]
    assert json.loads(call.function.arguments)["city"] in ["Bern", "Rome"], (provider, call)
print("ok")
