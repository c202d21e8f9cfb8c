"""Checks the daemon with Anthropic's client. Arguments: socket or URL, id of the model."""

import sys

import anthropic

try:  # newer versions use it
    import httpx2 as httpx
except ImportError:
    import httpx

where, model = sys.argv[1:]
over_tcp = where.startswith("http")
client = anthropic.Anthropic(
    base_url=where if over_tcp else "http://localhost",
    api_key="none",
    max_retries=0,
    http_client=httpx.Client(
        transport=None if over_tcp else httpx.HTTPTransport(uds=where), timeout=60
    ),
)

ask = dict(model=model, max_tokens=6, system="Be brief.", messages=[{"role": "user", "content": "Hello"}],
           extra_body={"temperature": 0})  # newer clients have no such argument
whole = client.messages.create(**ask)
assert whole.type == "message" and whole.role == "assistant" and whole.model == model
assert whole.stop_reason in ["end_turn", "max_tokens"], whole
assert [block.type for block in whole.content] == ["text"]
count = client.messages.count_tokens(model=model, system="Be brief.", messages=ask["messages"])
read = whole.usage.cache_read_input_tokens or 0
assert count.input_tokens == whole.usage.input_tokens + read
with client.messages.stream(**ask) as stream:
    text = "".join(stream.text_stream)
    final = stream.get_final_message()
assert text == whole.content[0].text == final.content[0].text
assert final.stop_reason == whole.stop_reason and final.usage.output_tokens == whole.usage.output_tokens

# `max_tokens` beyond the context ends at the context.
long = client.messages.create(**{**ask, "max_tokens": 100_000, "stop_sequences": ["e"]})
assert long.stop_reason in ["end_turn", "max_tokens", "stop_sequence"]
if long.stop_reason == "stop_sequence":
    assert long.stop_sequence == "e" and "e" not in long.content[0].text

# Tools: a required call, whole and streamed, then the result of the tool.
place = {"type": "object", "properties": {"city": {"enum": ["Bern", "Rome"]}}, "required": ["city"],
         "additionalProperties": False}
ask = dict(model=model, max_tokens=60, messages=[{"role": "user", "content": "The weather?"}], extra_body={"temperature": 0},
           tools=[{"name": "weather", "description": "The weather.", "input_schema": place}],
           tool_choice={"type": "any", "disable_parallel_tool_use": True})
whole = client.messages.create(**ask)
assert whole.stop_reason == "tool_use", whole
(call,) = whole.content
assert call.type == "tool_use" and call.name == "weather" and call.input["city"] in ["Bern", "Rome"]
with client.messages.stream(**ask) as stream:
    final = stream.get_final_message()
assert final.content[0].input == call.input and final.stop_reason == "tool_use"
result = {"type": "tool_result", "tool_use_id": call.id, "content": "Sunny."}
messages = ask["messages"] + [
    {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in whole.content]},
    {"role": "user", "content": [result]},
]
told = client.messages.create(model=model, max_tokens=4, messages=messages, tools=ask["tools"])
everything = lambda usage: usage.input_tokens + (usage.cache_read_input_tokens or 0)
assert everything(told.usage) > everything(whole.usage)

for kind, changes in [
    (anthropic.NotFoundError, {"model": "claude-7"}),
    (anthropic.BadRequestError, {"extra_body": {"temperature": 9}}),
    (anthropic.BadRequestError, {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}),
]:
    try:
        client.messages.create(**{**ask, **changes})
    except kind:
        pass
    else:
        raise AssertionError(f"{changes} was not refused")
print("ok")
