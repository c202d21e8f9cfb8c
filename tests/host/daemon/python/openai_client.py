"""Checks the daemon with OpenAI's client. Arguments: socket or URL, id of the model."""

import json
import sys

import httpx
import openai

where, model = sys.argv[1:]
over_tcp = where.startswith("http")
client = openai.OpenAI(
    base_url=f"{where}/v1" if over_tcp else "http://localhost/v1",
    api_key="none",
    max_retries=0,
    http_client=httpx.Client(
        transport=None if over_tcp else httpx.HTTPTransport(uds=where), timeout=60
    ),
)

assert [m.id for m in client.models.list()] == [model]


def counted(usage):
    """Token counts without cached ones, which depend on earlier requests."""
    return usage.prompt_tokens, usage.completion_tokens, usage.total_tokens


# Completions: whole and streamed.
ask = dict(model=model, prompt="Once upon a time", max_tokens=8, temperature=0, logprobs=2)
whole = client.completions.create(**ask, echo=True)
choice = whole.choices[0]
assert whole.object == "text_completion" and choice.finish_reason == "length"
assert whole.usage.total_tokens == len(choice.logprobs.tokens)
assert choice.text.startswith("Once upon a time")
for token, logprob, top in zip(
    choice.logprobs.tokens[-8:], choice.logprobs.token_logprobs[-8:], choice.logprobs.top_logprobs[-8:]
):
    assert max(top, key=top.get) == token and top[token] == logprob, (token, logprob, top)
parts = list(client.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
text = "".join(c.text for part in parts for c in part.choices)
assert "Once upon a time" + text == choice.text, (text, choice.text)
assert counted(parts[-1].usage) == counted(whole.usage) and parts[-2].choices[0].finish_reason == "length"

# Several prompts of token ids.
ids = client.completions.create(model=model, prompt=[[5, 6], [7]], max_tokens=2, temperature=0)
assert [c.index for c in ids.choices] == [0, 1] and ids.usage.prompt_tokens == 3

# Chat: whole and streamed.
ask = dict(
    model=model,
    messages=[{"role": "user", "content": [{"type": "text", "text": "Hello"}]}],
    max_completion_tokens=6,
    temperature=0,
    logprobs=True,
    top_logprobs=3,
    extra_body={"ignore_eos": True},
)
whole = client.chat.completions.create(**ask)
message = whole.choices[0].message
assert message.role == "assistant" and whole.choices[0].finish_reason == "length"
assert len(whole.choices[0].logprobs.content) == 6
assert all(len(t.top_logprobs) == 3 for t in whole.choices[0].logprobs.content)
stream = client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True})
parts = list(stream)
assert parts[0].choices[0].delta.role == "assistant"
assert "".join(c.delta.content or "" for p in parts for c in p.choices) == message.content
assert counted(parts[-1].usage) == counted(whole.usage)

# Several answers to one prompt.
several = client.chat.completions.create(**{**ask, "temperature": 1, "n": 3, "seed": 1})
assert [c.index for c in several.choices] == [0, 1, 2]
assert several.usage.prompt_tokens == whole.usage.prompt_tokens
assert several.usage.completion_tokens == 18

# Tools: a required call, whole and streamed, then the result of the tool.
place = {"type": "object", "properties": {"city": {"enum": ["Bern", "Rome"]}}, "required": ["city"],
         "additionalProperties": False}
tools = [{"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": place}}]
ask = dict(model=model, messages=[{"role": "user", "content": "The weather?"}], temperature=0, max_tokens=60,
           tools=tools, tool_choice="required", parallel_tool_calls=False)
whole = client.chat.completions.create(**ask).choices[0]
assert whole.finish_reason == "tool_calls", whole
(call,) = whole.message.tool_calls
assert call.type == "function" and call.function.name == "weather" and call.id
assert json.loads(call.function.arguments)["city"] in ["Bern", "Rome"]
with client.chat.completions.stream(**ask) as stream:
    for event in stream:
        pass
    final = stream.get_final_completion().choices[0]
assert final.finish_reason == "tool_calls"
assert final.message.tool_calls[0].function.arguments == call.function.arguments
messages = ask["messages"] + [
    whole.message.model_dump(exclude_none=True),
    {"role": "tool", "tool_call_id": call.id, "content": "Sunny."},
]
told = client.chat.completions.create(model=model, messages=messages, tools=tools, max_tokens=4)
assert told.usage.prompt_tokens > 0

# Structured output.
shape = {"type": "json_schema", "json_schema": {"name": "place", "strict": True, "schema": place}}
ask = dict(model=model, messages=[{"role": "user", "content": "Where?"}], temperature=0, max_tokens=60)
said = client.chat.completions.create(**ask, response_format=shape).choices[0]
assert said.finish_reason == "stop" and json.loads(said.message.content)["city"] in ["Bern", "Rome"]

# Responses: whole, streamed, continued, and with a tool call.
ask = dict(model=model, input="Hello", temperature=0, max_output_tokens=6, extra_body={"top_k": 1})
whole = client.responses.create(**ask, instructions="Be brief.")
assert whole.object == "response" and whole.status in ["completed", "incomplete"]
again = client.responses.create(**{**ask, "input": "And?"}, previous_response_id=whole.id)
assert again.usage.input_tokens > 0 and again.previous_response_id == whole.id
events = list(client.responses.create(**ask, instructions="Be brief.", stream=True))
assert [event.sequence_number for event in events] == list(range(len(events)))
assert events[0].type == "response.created" and events[-1].type == f"response.{whole.status}"
text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
assert text == whole.output_text == events[-1].response.output_text
function = [{"type": "function", "name": "weather", "parameters": place, "strict": True}]
ask = dict(model=model, input="The weather?", temperature=0, max_output_tokens=60, tools=function,
           tool_choice="required", parallel_tool_calls=False)
called = client.responses.create(**ask)
(call,) = [item for item in called.output if item.type == "function_call"]
assert json.loads(call.arguments)["city"] in ["Bern", "Rome"]
answer = [{"type": "function_call_output", "call_id": call.call_id, "output": "Sunny."}]
told = client.responses.create(model=model, input=answer, previous_response_id=called.id, tools=function,
                               max_output_tokens=4)
assert told.usage.input_tokens > called.usage.input_tokens
done = [event for event in client.responses.create(**ask, stream=True)
        if event.type == "response.function_call_arguments.done"]
assert [event.arguments for event in done] == [call.arguments]

# Errors raise the client's exceptions.
def refused(kind, code, **changes):
    try:
        client.completions.create(**{"model": model, "prompt": "a", "max_tokens": 1, **changes})
    except kind as error:
        assert error.code == code, error
    else:
        raise AssertionError(f"{changes} was not refused")

refused(openai.NotFoundError, "model_not_found", model="gpt-7")
refused(openai.BadRequestError, "unsupported_parameter", best_of=2)
refused(openai.BadRequestError, "invalid_value", temperature=9)
refused(openai.BadRequestError, "context_length_exceeded", prompt=[5] * 600)
try:
    client.embeddings.create(model=model, input="a")
except openai.BadRequestError as error:
    assert error.code == "unsupported_parameter", error
else:
    raise AssertionError("embeddings were not refused")
print("ok")
