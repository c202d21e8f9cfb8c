"""Client of the daemon's HTTP API. Each call has its own connection, so threads may share a client."""

import base64
import json
import os
import time
from typing import Any, Callable, Generator, Iterator, List, Mapping, Optional, Sequence, Tuple, TypeVar, Union
from urllib.parse import quote

from . import address as addresses
from .answers import Answer, Delta, Json, Loaded, Run, Tool, tool as describe
from .control_loop import ControlLoop
from .errors import APIError, Closed, ConnectError, NotReady, ProtocolError, Timeout
from .metrics import Metrics
from .tensor import Tensor
from .transport import Event, Exchange, absolute

Message = Mapping[str, Any]
Messages = Union[str, Sequence[Message]]
Self = TypeVar("Self", bound="Stream")


class Stream:
    """Parts of an answer as they arrive.

    Iteration yields `Delta`s; `answer` has everything so far. `close`, also from another thread, or the end of a `with`
    block cancels the request in the daemon; an iteration that it interrupts raises `Closed`.
    """

    def __init__(self, exchange: Exchange) -> None:
        self.answer = Answer()
        self._exchange = exchange
        self._parts = _parts(exchange, self.answer)

    def __iter__(self) -> Iterator[Delta]:
        return self

    def __next__(self) -> Delta:
        try:
            return next(self._parts)
        except StopIteration:
            if self._exchange.complete:
                raise
            raise Closed("the stream was closed before its end") from None

    def result(self) -> Answer:
        """Reads to the end, and returns the whole answer."""
        for _ in self:
            pass
        return self.answer

    def texts(self) -> Iterator[str]:
        """Yields the parts of the text only."""
        return (delta.text for delta in self if delta.text)

    def close(self) -> None:
        self._exchange.close()
        try:
            self._parts.close()
        except ValueError:
            return  # another thread reads, and ends the exchange
        self._exchange.finish()

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class Client:
    """A daemon at `address`: a path of a unix socket, `HOST:PORT` or a URL; by default the one that `orinctl` uses.

    `token` is required by ports with a token (default: `$ORIND_TOKEN`). `timeout` is the limit in seconds of each call,
    from connect to the end of the answer; `None` waits as long as the daemon works.
    """

    def __init__(self, address: Union[None, str, "os.PathLike[str]", addresses.Address] = None, *,
                 token: Optional[str] = None, timeout: Optional[float] = None, model: Optional[str] = None) -> None:
        self.address = addresses.parse(address)
        self.timeout = timeout
        self.model = model
        self._token = token or addresses.default_token()

    # Generation

    def chat(self, messages: Messages, **options: Any) -> Answer:
        """Answers a conversation: a question, or messages with `role` and `content`.

        Options are the fields of `/v1/chat/completions`: `model`, `max_tokens`, `temperature`, `top_p`, `top_k`, `seed`,
        `stop`, `json_schema`, `grammar`, `tool_choice`, and others. `tools` may be Python functions. `timeout` is the
        limit of this call.
        """
        body, timeout = self._chat(messages, options)
        return Answer.parse(self.request("POST", "/v1/chat/completions", body, timeout=timeout))

    def chat_stream(self, messages: Messages, **options: Any) -> Stream:
        """Answers a conversation part by part; see `chat`."""
        body, timeout = self._chat(messages, options)
        return self._stream("/v1/chat/completions", body, timeout)

    def converse(self, messages: Messages, tools: Sequence[Callable[..., Any]], *, turns: int = 8,
                 **options: Any) -> Answer:
        """Answers a conversation, and calls functions for the model until it answers with text.

        An exception of a function is its result for the model. After `turns` answers with calls the last one is
        returned as it is.
        """
        history: List[Message] = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
        functions = {str(describe(function)["function"]["name"]): function for function in tools}
        for turn in range(max(turns, 1)):
            answer = self.chat(history, tools=list(tools), **options)
            if not answer.tool_calls or turn + 1 >= turns:
                break
            history.append(answer.message)
            for call in answer.tool_calls:
                history.append(call.answer(_result(functions, call.name, lambda: call.arguments)))
        return answer

    def generate(self, prompt: Union[str, Sequence[int]], **options: Any) -> Answer:
        """Continues a text, or token ids, without a chat template. Options are those of `/v1/completions`."""
        body, timeout = self._body(options)
        return Answer.parse(self.request("POST", "/v1/completions", {**body, "prompt": prompt}, timeout=timeout))

    def generate_stream(self, prompt: Union[str, Sequence[int]], **options: Any) -> Stream:
        """Continues a text part by part; see `generate`."""
        body, timeout = self._body(options)
        return self._stream("/v1/completions", {**body, "prompt": prompt}, timeout)

    def embed(self, texts: Union[str, Sequence[str]], *, dimensions: Optional[int] = None, model: Optional[str] = None,
              timeout: Optional[float] = None) -> Tensor:
        """Returns the embedding of a text, or those of several texts as rows."""
        body, _ = self._body({"model": model, "dimensions": dimensions})
        single = isinstance(texts, str)
        if not single and not texts:
            raise ValueError("no text to embed")
        body.update(input=texts if single else list(texts), encoding_format="base64")
        rows = self.request("POST", "/v1/embeddings", body, timeout=timeout)["data"]
        rows.sort(key=lambda row: row["index"])
        data = b"".join(base64.b64decode(row["embedding"]) for row in rows)
        width = len(data) // 4 // len(rows)
        return Tensor(memoryview(bytearray(data)), [width] if single else [len(rows), width])

    def tokenize(self, text: str, *, add_special: bool = False, parse_special: bool = True,
                 model: Optional[str] = None) -> List[int]:
        """Returns the token ids of a text."""
        body, _ = self._body({"model": model, "content": text, "add_special": add_special, "parse_special": parse_special})
        return list(self.request("POST", "/tokenize", body)["tokens"])

    def detokenize(self, tokens: Sequence[int], *, model: Optional[str] = None) -> str:
        """Returns the text of token ids."""
        body, _ = self._body({"model": model, "tokens": list(tokens)})
        return str(self.request("POST", "/detokenize", body)["content"])

    def render(self, messages: Messages, **options: Any) -> str:
        """Returns the prompt that the model's chat template makes of a conversation."""
        body, timeout = self._chat(messages, options)
        return str(self.request("POST", "/apply-template", body, timeout=timeout)["prompt"])

    # Networks

    def run(self, model: str, inputs: Mapping[str, Any], *, backend: Optional[str] = None,
            timeout: Optional[float] = None) -> Run:
        """Runs an ONNX network. Inputs are arrays, buffers, nested lists or tensors; the daemon computes in `f32`."""
        body = {"model": absolute(model, self.address), "encoding_format": "base64",
                "inputs": {name: Tensor.of(values).encode() for name, values in inputs.items()}}
        if backend:
            body["backend"] = backend
        answer = self.request("POST", "/orin/v1/run", body, timeout=timeout)
        outputs = {name: Tensor.decode(place) for name, place in answer["outputs"].items()}
        return Run(outputs, answer["device"], answer["run_ms"], answer["prepared"])

    def control_loop(self, name: str) -> ControlLoop:
        """Connects to one of the daemon's control loops."""
        return ControlLoop(name, self.address)

    # Models and state

    def models(self) -> Loaded:
        """Returns the loaded and the available models."""
        body = self.request("GET", "/orin/v1/models")
        return Loaded(body.get("loaded"), body.get("residents") or [], body["available"], body["models_dir"])

    def load(self, model: str, *, progress: Optional[Callable[[Json], None]] = None, timeout: Optional[float] = None,
             **options: Any) -> Json:
        """Loads a model: a file, a name of the models directory, or `synthetic:NAME`; returns its description.

        Options are the fields of `POST /orin/v1/models`, such as `slots`, `context`, `beside` and `name`. `progress` is
        called with each event. After the time limit the load continues in the daemon.
        """
        body = {"model": absolute(model, self.address), **options}
        for event in self.events("POST", "/orin/v1/models", body, timeout=timeout):
            if event.name == "progress" and progress is not None:
                progress(_json(event))
            elif event.name == "result":
                return _json(event)
            elif event.name == "error":
                raise APIError.parse(_json(event))
        raise ConnectError("the daemon closed the connection during the load")

    def unload(self, name: Optional[str] = None) -> bool:
        """Unloads the first model, or that of a name; returns false if none was loaded."""
        path = "/orin/v1/models" + (f"/{quote(name, safe='')}" if name else "")
        return bool(self.request("DELETE", path)["unloaded"])

    def status(self) -> Json:
        """Returns the status of daemon, model, control loops and machine."""
        return _object(self.request("GET", "/orin/v1/status"))

    def metrics(self) -> Metrics:
        """Returns the counters and gauges of `/metrics`."""
        return Metrics(self._exchange("GET", "/metrics").read().decode("utf-8"))

    def health(self) -> bool:
        """Returns whether the daemon can serve requests."""
        try:
            self.request("GET", "/health")
        except (ConnectError, NotReady):
            return False
        return True

    def wait(self, timeout: float = 60.0) -> None:
        """Waits until the daemon can serve requests; raises `Timeout` with the reason if it cannot."""
        end, reason = time.monotonic() + timeout, ""
        while True:
            try:
                self.request("GET", "/health", timeout=max(end - time.monotonic(), 0.1))
                return
            except (ConnectError, NotReady, Timeout) as error:
                if isinstance(error, NotReady) and error.code == "load_failed":
                    raise
                reason = str(error)
            if time.monotonic() >= end:
                raise Timeout(f"the daemon is not ready after {timeout} s: {reason}")
            time.sleep(0.05)

    # Any route

    def request(self, method: str, path: str, body: Any = None, *, timeout: Optional[float] = None) -> Any:
        """Sends a request to any route, and returns its JSON."""
        return self._exchange(method, path, body, timeout).json()

    def events(self, method: str, path: str, body: Any = None, *, timeout: Optional[float] = None) -> Iterator[Event]:
        """Sends a request to any route, and yields its server-sent events."""
        exchange = self._exchange(method, path, body, timeout)
        try:
            yield from exchange.events()
        finally:
            exchange.finish()

    def _exchange(self, method: str, path: str, body: Any = None, timeout: Optional[float] = None) -> Exchange:
        limit = self.timeout if timeout is None else timeout
        return Exchange(self.address, method, path, body, self._token, limit)

    def _stream(self, path: str, body: Json, timeout: Optional[float]) -> Stream:
        return Stream(self._exchange("POST", path, {**body, "stream": True, "stream_options": {"include_usage": True}},
                                     timeout))

    def _body(self, options: Mapping[str, Any]) -> Tuple[Json, Optional[float]]:
        body = {name: value for name, value in options.items() if value is not None}
        timeout = body.pop("timeout", None)
        if self.model is not None:
            body.setdefault("model", self.model)
        return body, timeout

    def _chat(self, messages: Messages, options: Mapping[str, Any]) -> Tuple[Json, Optional[float]]:
        body, timeout = self._body(options)
        body["messages"] = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
        if body.get("tools"):
            body["tools"] = [describe(function) for function in body["tools"]]
        return body, timeout


# A generator that refers to no stream: a stream without references is closed at once, and not by the garbage collector.
def _parts(exchange: Exchange, answer: Answer) -> Generator[Delta, None, None]:
    try:
        for event in exchange.events():
            if event.data == "[DONE]":
                exchange.complete = True
                return
            body = _json(event)
            if event.name == "error" or "error" in body:
                raise APIError.parse(body)
            delta = answer.add(body)
            if delta.text or delta.reasoning or delta.tool_call or delta.logprobs:
                yield delta
        raise ConnectError("the daemon closed the connection within its answer")
    finally:
        exchange.finish()


def _result(functions: Mapping[str, Callable[..., Any]], name: str, arguments: Callable[[], Json]) -> Any:
    if name not in functions:
        return f"error: there is no function {name}"
    try:
        return functions[name](**arguments())
    except Exception as error:  # the model reads it, and may correct its call
        return f"error: {error}"


def _json(event: Event) -> Json:
    try:
        return _object(json.loads(event.data))
    except ValueError as error:
        raise ProtocolError(f"an event of the daemon is not JSON: {error}") from error


def _object(body: Any) -> Json:
    if not isinstance(body, dict):
        raise ProtocolError(f"an answer of the daemon is no object: {str(body)[:100]}")
    return body
