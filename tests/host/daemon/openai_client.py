"""What OpenAI's own client makes of the daemon's answers. Arguments: the socket, the model's id."""

import sys

import httpx
import openai

socket, model = sys.argv[1:]
client = openai.OpenAI(
    base_url="http://localhost/v1",
    api_key="none",
    max_retries=0,
    http_client=httpx.Client(transport=httpx.HTTPTransport(uds=socket), timeout=60),
)

assert [m.id for m in client.models.list()] == [model]

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
assert parts[-1].usage == whole.usage and parts[-2].choices[0].finish_reason == "length"

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
assert parts[-1].usage == whole.usage

# Errors arrive as its own exceptions.
def refused(kind, code, **changes):
    try:
        client.completions.create(**{"model": model, "prompt": "a", "max_tokens": 1, **changes})
    except kind as error:
        assert error.code == code, error
    else:
        raise AssertionError(f"{changes} was not refused")

refused(openai.NotFoundError, "model_not_found", model="gpt-7")
refused(openai.BadRequestError, "unsupported_parameter", n=2)
refused(openai.BadRequestError, "invalid_value", temperature=9)
refused(openai.BadRequestError, "context_length_exceeded", max_tokens=100000)
print("ok")
