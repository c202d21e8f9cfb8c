"""Policies: from the observation of a client to the inputs of a network, and from its outputs to actions."""

import threading
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ..client import Client
from ..control_loop import ControlLoop
from ..errors import ConnectError, OrindError, Timeout
from ..tensor import Tensor, count
from .msgpack import Array


def flatten(observation: Mapping[Any, Any], prefix: str = "") -> Dict[str, Any]:
    """Observation with nested keys joined by `/`, as OpenPI writes them."""
    flat: Dict[str, Any] = {}
    for key, value in observation.items():
        name = f"{prefix}{key.decode('utf-8', 'replace') if isinstance(key, bytes) else key}"
        if isinstance(value, dict):
            flat.update(flatten(value, f"{name}/"))
        else:
            flat[name] = value
    return flat


def tensor(name: str, value: Any) -> Tensor:
    """Value of an observation as `f32`."""
    if isinstance(value, Array):
        return value.tensor()
    try:
        return Tensor.of(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"observation {name} has no numbers: {error}") from error


class Policy:
    """A network behind OpenPI's protocol. `inputs` and `outputs` map names of the network to keys of the protocol."""

    def __init__(self, inputs: Optional[Mapping[str, str]] = None, outputs: Optional[Mapping[str, str]] = None) -> None:
        self._inputs, self._outputs = dict(inputs or {}), dict(outputs or {})

    def infer(self, observation: Mapping[Any, Any], timeout: float) -> Dict[str, Any]:
        """Returns the actions for an observation."""
        raise NotImplementedError

    def metadata(self) -> Dict[str, Any]:
        """Description that a client receives when it connects."""
        raise NotImplementedError

    def _take(self, flat: Mapping[str, Any], name: str) -> Tensor:
        key = self._inputs.get(name, name)
        if key not in flat:
            raise ValueError(f"the observation has no {key}; it has {', '.join(sorted(flat)) or 'nothing'}")
        return tensor(key, flat[key])

    def _give(self, outputs: Mapping[str, Tensor], batched: bool) -> Dict[str, Any]:
        """Actions by key; without the first axis that the observation did not have either."""
        actions: Dict[str, Any] = {}
        for name, values in outputs.items():
            lone = batched and len(values.shape) > 1 and values.shape[0] == 1
            actions[self._outputs.get(name, name)] = values.row(0).copy() if lone else values.copy()
        return actions


class NetworkPolicy(Policy):
    """An ONNX file that the daemon runs with `POST /orin/v1/run`.

    An observation without the network's first axis gets one of extent 1. The names of the inputs are those of
    `shapes`, which has the shape of each.
    """

    def __init__(self, client: Client, model: str, shapes: Mapping[str, List[int]], backend: Optional[str] = None,
                 inputs: Optional[Mapping[str, str]] = None, outputs: Optional[Mapping[str, str]] = None) -> None:
        super().__init__(inputs, outputs)
        self._client, self._model, self._backend = client, model, backend
        self._shapes = {name: tuple(shape) for name, shape in shapes.items()}

    def infer(self, observation: Mapping[Any, Any], timeout: float) -> Dict[str, Any]:
        flat, values, batched = flatten(observation), {}, False
        for name, shape in self._shapes.items():
            values[name], added = fitted(self._take(flat, name), name, shape)
            batched |= added
        run = self._client.run(self._model, values, backend=self._backend, timeout=timeout)
        return self._give(run.outputs, batched)

    def metadata(self) -> Dict[str, Any]:
        return {"model": self._model, "inputs": _described(self._shapes, self._inputs)}


class LoopPolicy(Policy):
    """A control loop of the daemon. One step runs at a time. After a lost connection the next one connects again."""

    def __init__(self, loop: ControlLoop, inputs: Optional[Mapping[str, str]] = None,
                 outputs: Optional[Mapping[str, str]] = None) -> None:
        super().__init__(inputs, outputs)
        self._loop, self._lock, self._lost = loop, threading.Lock(), False

    def infer(self, observation: Mapping[Any, Any], timeout: float) -> Dict[str, Any]:
        if not self._lock.acquire(timeout=timeout):
            raise Timeout(f"the control loop {self._loop.name} is busy for longer than {timeout} s")
        try:
            return self._step(flatten(observation), timeout)
        except ConnectError:
            self._lost = True
            raise
        finally:
            self._lock.release()

    def _step(self, flat: Mapping[str, Any], timeout: float) -> Dict[str, Any]:
        if self._lost:
            self._loop.close()
            self._loop = ControlLoop(self._loop.name, self._loop.address)
            self._lost = False
        values, batched = {}, False
        for name, place in self._loop.inputs.items():
            values[name], added = fitted(self._take(flat, name), name, place.shape)
            batched |= added
        return self._give(self._loop.step(values, timeout=timeout), batched)

    def metadata(self) -> Dict[str, Any]:
        shapes = {name: place.shape for name, place in self._loop.inputs.items()}
        return {"control_loop": self._loop.name, "rate_hz": self._loop.rate_hz, "deadline_s": self._loop.deadline_s,
                "inputs": _described(shapes, self._inputs),
                "outputs": {self._outputs.get(name, name): list(place.shape) for name, place in self._loop.outputs.items()}}


def fitted(values: Tensor, name: str, shape: Tuple[int, ...]) -> Tuple[Tensor, bool]:
    """Values in the network's shape, and whether they lacked its first axis."""
    if len(values.shape) == len(shape) and all(want in (have, 0) for want, have in zip(shape, values.shape)):
        return values, False
    if shape[:1] in ((1,), (0,)) and count(values.shape) == count([extent or 1 for extent in shape]):
        return values.reshape([extent or 1 for extent in shape]), True
    raise ValueError(f"observation {name} has the shape {list(values.shape)}, not {list(shape)}")


def _described(shapes: Mapping[str, Tuple[int, ...]], names: Mapping[str, str]) -> Dict[str, Any]:
    return {names.get(name, name): list(shape) for name, shape in shapes.items()}


def parse_shape(text: str) -> Tuple[str, List[int]]:
    """Parses `NAME=1,12`; an extent 0 fits any."""
    name, separator, extents = text.rpartition("=")
    try:
        shape = [int(extent) for extent in extents.split(",") if extent]
    except ValueError:
        shape = [-1]
    if not separator or not name or any(extent < 0 for extent in shape):
        raise OrindError(f"{text}: a shape is written NAME=1,12")
    return name, shape
