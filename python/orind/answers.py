"""Answers of the daemon, and functions that a model may call."""

import collections.abc
import inspect
import json
import types
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Mapping, Optional, Union, get_args, get_origin, get_type_hints

from .errors import ProtocolError
from .tensor import Tensor

Json = Dict[str, Any]
Tool = Union[Mapping[str, Any], Callable[..., Any]]


@dataclass(frozen=True)
class Usage:
    """Numbers of tokens; `cached` ones came from the prefix cache, `accepted` ones from drafts."""

    prompt: int = 0
    completion: int = 0
    cached: int = 0
    accepted: int = 0

    @classmethod
    def parse(cls, body: Optional[Json]) -> "Usage":
        body = body or {}
        return cls(body.get("prompt_tokens", 0), body.get("completion_tokens", 0),
                   (body.get("prompt_tokens_details") or {}).get("cached_tokens", 0),
                   (body.get("completion_tokens_details") or {}).get("accepted_prediction_tokens", 0))


@dataclass(frozen=True)
class Timings:
    """Milliseconds since the request's arrival."""

    queued_ms: float = 0.0
    first_token_ms: float = 0.0
    total_ms: float = 0.0

    @classmethod
    def parse(cls, body: Optional[Json]) -> "Timings":
        body = body or {}
        return cls(*(float(body.get(name) or 0.0) for name in ("queued_ms", "first_token_ms", "total_ms")))


@dataclass
class ToolCall:
    """A function that the model calls. `text` has the arguments as written."""

    id: str = ""
    name: str = ""
    text: str = ""

    @property
    def arguments(self) -> Json:
        """Arguments by name. A limit on tokens may have cut them: then this raises `ProtocolError`."""
        try:
            arguments = json.loads(self.text or "{}")
        except ValueError as error:
            raise ProtocolError(f"arguments of {self.name} are no JSON: {error}") from error
        if not isinstance(arguments, dict):
            raise ProtocolError(f"arguments of {self.name} are no object: {self.text}")
        return arguments

    def answer(self, result: Any) -> Json:
        """Returns the message with the function's result, for the next turn."""
        content = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
        return {"role": "tool", "tool_call_id": self.id, "content": content}

    def to_json(self) -> Json:
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.text}}


@dataclass
class Answer:
    """Text of a model, and how it ended: `stop`, `length` or `tool_calls`."""

    text: str = ""
    reasoning: str = ""
    tool_calls: List[ToolCall] = field(default_factory=list)
    finish_reason: Optional[str] = None
    model: str = ""
    usage: Usage = Usage()
    timings: Timings = Timings()
    logprobs: Any = None
    raw: Any = None

    @property
    def message(self) -> Json:
        """Message of the assistant, for the next turn."""
        message: Json = {"role": "assistant", "content": self.text}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = [call.to_json() for call in self.tool_calls]
        return message

    def json(self) -> Any:
        """Text parsed as JSON, for answers with a schema."""
        try:
            return json.loads(self.text)
        except ValueError as error:
            raise ProtocolError(f"the answer is no JSON ({self.finish_reason}): {error}") from error

    def _end(self, body: Json) -> None:
        self.model = body.get("model") or self.model
        if body.get("usage"):
            self.usage = Usage.parse(body["usage"])
        if body.get("timings"):
            self.timings = Timings.parse(body["timings"])

    @classmethod
    def parse(cls, body: Json) -> "Answer":
        """Returns the first choice of a whole answer."""
        answer = cls(raw=body)
        answer._end(body)
        choice = (body.get("choices") or [{}])[0]
        message = choice.get("message") or {}
        answer.text = message.get("content") or choice.get("text") or ""
        answer.reasoning = message.get("reasoning_content") or ""
        answer.finish_reason = choice.get("finish_reason")
        answer.logprobs = choice.get("logprobs")
        for call in message.get("tool_calls") or []:
            function = call.get("function") or {}
            answer.tool_calls.append(ToolCall(call.get("id", ""), function.get("name", ""), function.get("arguments", "")))
        return answer

    def add(self, body: Json) -> "Delta":
        """Adds an event of a stream, and returns the new part."""
        self._end(body)
        delta = Delta()
        for choice in (body.get("choices") or [])[:1]:
            part = choice.get("delta") or {}
            delta.text = part.get("content") or choice.get("text") or ""
            delta.reasoning = part.get("reasoning_content") or ""
            delta.logprobs = choice.get("logprobs")
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
            for call in part.get("tool_calls") or []:
                self._call(int(call.get("index", 0)), call, delta)
        self.text += delta.text
        self.reasoning += delta.reasoning
        return delta

    def _call(self, index: int, part: Json, delta: "Delta") -> None:
        if not 0 <= index <= len(self.tool_calls):
            raise ProtocolError(f"call {index} of a function follows {len(self.tool_calls)} calls")
        if index == len(self.tool_calls):
            self.tool_calls.append(ToolCall())
        call, function = self.tool_calls[index], part.get("function") or {}
        call.id = part.get("id") or call.id
        call.name = function.get("name") or call.name
        call.text += function.get("arguments") or ""
        delta.tool_call = call


@dataclass
class Delta:
    """Part of a streamed answer. `tool_call` is the call that grows, with its arguments so far."""

    text: str = ""
    reasoning: str = ""
    tool_call: Optional[ToolCall] = None
    logprobs: Any = None


@dataclass(frozen=True)
class Run:
    """Outputs of an ONNX network by name."""

    outputs: Dict[str, Tensor]
    device: str
    run_ms: float
    prepared: bool

    def __getitem__(self, name: str) -> Tensor:
        return self.outputs[name]


@dataclass(frozen=True)
class Loaded:
    """Models that the daemon can load, as `/orin/v1/models` lists them."""

    loaded: Optional[Json]
    residents: List[Json]
    available: List[Json]
    models_dir: str


_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean"}


def _schema(kind: Any) -> Json:
    if kind in _TYPES:
        return {"type": _TYPES[kind]}
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is list or origin in (list, collections.abc.Sequence):
        return {"type": "array", **({"items": _schema(arguments[0])} if arguments else {})}
    if kind is dict or origin is dict:
        return {"type": "object"}
    if origin in (Union, getattr(types, "UnionType", Union)):
        known = [argument for argument in arguments if argument is not type(None)]
        return _schema(known[0]) if len(known) == 1 else {"anyOf": [_schema(argument) for argument in known]}
    return {}


def tool(function: Tool) -> Json:
    """Returns the description of a function for a model, from its name, annotations and docstring.

    A mapping is used as it is, with or without OpenAI's wrapper of `type` and `function`.
    """
    if isinstance(function, Mapping):
        return dict(function) if "function" in function else {"type": "function", "function": dict(function)}
    hints = get_type_hints(function)
    properties, required = {}, []
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise TypeError(f"{function.__name__} has the parameter *{name}; name each parameter")
        properties[name] = _schema(hints.get(name, str))
        if parameter.default is parameter.empty:
            required.append(name)
    return {"type": "function", "function": {
        "name": function.__name__, "description": inspect.getdoc(function) or "",
        "parameters": {"type": "object", "properties": properties, "required": required}}}
