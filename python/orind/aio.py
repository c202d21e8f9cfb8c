"""`AsyncClient`: the calls of `Client` for asyncio, each in a thread. Cancelling a task cancels the request."""

import asyncio
import functools
from concurrent.futures import ThreadPoolExecutor
from typing import Any, AsyncIterator, Callable, List, Mapping, Optional, Sequence, TypeVar, Union

from .answers import Answer, Delta, Json, Loaded, Run
from .client import Client, Messages, Stream
from .errors import Closed
from .metrics import Metrics
from .tensor import Tensor
from .transport import Exchange

T = TypeVar("T")


class _Call(Client):
    """A client of one call, which another thread can cancel."""

    def __init__(self, base: Client) -> None:
        self.__dict__.update(base.__dict__)
        self._current: Optional[Exchange] = None
        self._cancelled = False

    def _exchange(self, method: str, path: str, body: Any = None, timeout: Optional[float] = None) -> Exchange:
        exchange = super()._exchange(method, path, body, timeout)
        self._current = exchange
        if self._cancelled:
            exchange.finish()
            raise Closed("the call was cancelled")
        return exchange

    def cancel(self) -> None:
        self._cancelled = True
        if self._current is not None:
            self._current.close()


class AsyncStream:
    """Parts of an answer; see `Stream`. `close`, the end of an `async with` block and cancellation end the request."""

    def __init__(self, client: "AsyncClient", call: _Call, make: Callable[[_Call], Stream]) -> None:
        self._client, self._call, self._make = client, call, make
        self._stream: Optional[Stream] = None

    @property
    def answer(self) -> Answer:
        """Everything so far."""
        return self._stream.answer if self._stream is not None else Answer()

    def _next(self) -> Optional[Delta]:
        if self._stream is None:
            self._stream = self._make(self._call)
        return next(self._stream, None)

    async def __anext__(self) -> Delta:
        delta = await self._client._run(self._call, self._next)
        if delta is None:
            raise StopAsyncIteration
        return delta

    def __aiter__(self) -> AsyncIterator[Delta]:
        return self

    async def result(self) -> Answer:
        """Reads to the end, and returns the whole answer."""
        async for _ in self:
            pass
        return self.answer

    def close(self) -> None:
        self._call.cancel()

    async def __aenter__(self) -> "AsyncStream":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


class AsyncClient:
    """A `Client` for asyncio. Arguments and options are the same; up to `threads` calls run at once."""

    def __init__(self, *arguments: Any, threads: int = 64, **options: Any) -> None:
        self._base = Client(*arguments, **options)
        self._threads = ThreadPoolExecutor(threads, "orind")

    async def _run(self, call: _Call, function: Callable[[], T]) -> T:
        future = asyncio.get_running_loop().run_in_executor(self._threads, function)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            call.cancel()
            # The thread wakes at once; a loop that ends before it would report a failure.
            await asyncio.wait({future}, timeout=1.0)
            if future.done() and not future.cancelled():
                future.exception()
            raise

    async def _do(self, name: str, *arguments: Any, **options: Any) -> Any:
        call = _Call(self._base)
        return await self._run(call, functools.partial(getattr(call, name), *arguments, **options))

    def _start(self, name: str, *arguments: Any, **options: Any) -> AsyncStream:
        def make(call: _Call) -> Stream:
            stream: Stream = getattr(call, name)(*arguments, **options)
            return stream

        return AsyncStream(self, _Call(self._base), make)

    async def chat(self, messages: Messages, **options: Any) -> Answer:
        answer: Answer = await self._do("chat", messages, **options)
        return answer

    def chat_stream(self, messages: Messages, **options: Any) -> AsyncStream:
        return self._start("chat_stream", messages, **options)

    async def generate(self, prompt: Union[str, Sequence[int]], **options: Any) -> Answer:
        answer: Answer = await self._do("generate", prompt, **options)
        return answer

    def generate_stream(self, prompt: Union[str, Sequence[int]], **options: Any) -> AsyncStream:
        return self._start("generate_stream", prompt, **options)

    async def embed(self, texts: Union[str, Sequence[str]], **options: Any) -> Tensor:
        rows: Tensor = await self._do("embed", texts, **options)
        return rows

    async def tokenize(self, text: str, **options: Any) -> List[int]:
        tokens: List[int] = await self._do("tokenize", text, **options)
        return tokens

    async def run(self, model: str, inputs: Mapping[str, Any], **options: Any) -> Run:
        run: Run = await self._do("run", model, inputs, **options)
        return run

    async def load(self, model: str, **options: Any) -> Json:
        loaded: Json = await self._do("load", model, **options)
        return loaded

    async def unload(self, name: Optional[str] = None) -> bool:
        return bool(await self._do("unload", name))

    async def models(self) -> Loaded:
        models: Loaded = await self._do("models")
        return models

    async def status(self) -> Json:
        status: Json = await self._do("status")
        return status

    async def metrics(self) -> Metrics:
        metrics: Metrics = await self._do("metrics")
        return metrics

    async def request(self, method: str, path: str, body: Any = None, *, timeout: Optional[float] = None) -> Any:
        return await self._do("request", method, path, body, timeout=timeout)

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        self._threads.shutdown(wait=False)
