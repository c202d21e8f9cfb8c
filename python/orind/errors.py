"""Exceptions of this package."""

from typing import Any, Mapping, Optional


class OrindError(Exception):
    """Base class of all exceptions of this package."""


class ConnectError(OrindError):
    """No daemon listens at the address, or it closed the connection."""


class Timeout(OrindError, TimeoutError):
    """The time limit of a call has passed; the daemon cancels the request."""


class Closed(OrindError):
    """The stream or control loop was closed by this program."""


class ProtocolError(OrindError):
    """The answer is not what a daemon sends, or larger than the limit."""


class APIError(OrindError):
    """An error that the daemon reports.

    `code` is for programs, such as `context_length_exceeded`; `message` and `hint` are for people. `field` names the
    invalid field of the request. `status` is the HTTP status, 0 for an error within a stream.
    """

    def __init__(self, message: str, *, code: str = "", hint: Optional[str] = None, field: Optional[str] = None,
                 status: int = 0, request_id: Optional[str] = None, retry_after: Optional[float] = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.hint = hint
        self.field = field
        self.status = status
        self.request_id = request_id
        self.retry_after = retry_after

    def __str__(self) -> str:
        text = f"{self.message} [{self.code}]" if self.code else self.message
        return f"{text}; {self.hint}" if self.hint else text

    @classmethod
    def parse(cls, body: Any, status: int = 0, headers: Optional[Mapping[str, str]] = None) -> "APIError":
        """Returns the error of a body in any of the daemon's shapes."""
        headers = headers or {}
        error = body.get("error", body) if isinstance(body, dict) else body
        if isinstance(error, str):
            error = {**body, "message": error} if isinstance(body, dict) else {"message": error}
        if not isinstance(error, dict):
            error = {"message": f"the daemon answered with status {status}"}
        wait = headers.get("Retry-After", "")
        kind = cls
        code = str(error.get("code") or "")
        for special, codes in _KINDS.items():
            if code in codes:
                kind = special
        return kind(
            str(error.get("message", "")), code=code, hint=error.get("hint"), field=error.get("param"), status=status,
            request_id=headers.get("x-request-id"), retry_after=float(wait) if wait.isdigit() else None)


class NotReady(APIError):
    """No model is loaded yet, or the daemon is stopping; a later attempt may succeed."""


class Busy(APIError):
    """The queue or the daemon's connections are full; `retry_after` has the seconds to wait."""


class InvalidRequest(APIError):
    """The request itself is wrong; `field` names the field."""


class StepFailed(OrindError):
    """A step of a control loop failed; the message has the reason if the daemon reports one."""


_KINDS = {
    NotReady: {"no_model", "loading", "load_failed", "stopping"},
    Busy: {"queue_full", "too_many_connections", "busy"},
    InvalidRequest: {"malformed_json", "invalid_value", "unsupported_parameter", "context_length_exceeded",
                     "template_failed", "grammar_failed", "invalid_model", "unsupported_operation"},
}
