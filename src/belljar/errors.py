"""Every exception Belljar raises.

BelljarError
├── InvalidRequest            the caller asked for something that cannot be; nothing was started
│   ├── CodeTooLarge
│   ├── UnknownLanguage
│   ├── UnknownEngine
│   ├── UnknownEnvironment
│   ├── Unsupported           the engine cannot do that; the hint names those that can
│   ├── LimitExceeded         a limit is malformed, or above the operator's maximum
│   ├── InvalidFileName
│   ├── InvalidVariable       an environment variable that would change the runtime itself
│   ├── NetworkRefused        a host that the operator does not allow, a secret without a way
│   ├── PackageRefused        a package that is not allowed, not named properly, or not to be had
│   └── InvalidModule         a WebAssembly module that is none, or wants what was not linked
├── Unavailable               this machine or installation lacks something; the hint says what to do
│   ├── EngineUnavailable
│   ├── EnvironmentUnavailable
│   ├── NetworkUnavailable    the gateway was lost, or does not answer: try again
│   └── ServerUnreachable     `url=`: nobody answers there, or the connection broke
├── ServerRefused             `url=`: the server's own reasons: key, quota, queue; `code` says which
├── EngineError               a wall could not be built, or broke: the host's fault, not the code's
├── ModuleStopped             a WebAssembly module did not return from a call: `status` says why
├── TrailError                the trail cannot be written: nothing ran, or what ran is not told
├── SandboxLost               a kept sandbox, or the state in it, is gone
├── SandboxFileError          a file in a sandbox cannot be had that way: `kind` says why
│   ├── SandboxFileMissing
│   └── SandboxFileExists
├── Busy                      in use: a kept sandbox with a run under way, packages that are mounted
└── Closed                    a Belljar or a sandbox that was already closed was used
    └── SandboxEnded          a kept sandbox has reached its runs, its idle time or its life time,
                              or was closed; `ran`: while the code ran

What the *code* does wrong (an exception, a time-out, too much memory) is never an exception here:
it is the `status` of a Result.
"""

from __future__ import annotations


class BelljarError(Exception):
    """The root of the tree. `hint` says what to do about it, in words for people. `detail` has this
    machine's paths and what other programs said; a server logs it and never sends it."""

    def __init__(self, message: str, *, hint: str = "", detail: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.detail = detail

    @property
    def full_message(self) -> str:
        """With the detail: for people at this machine, never for a server's clients."""
        return f"{self.message}: {self.detail}" if self.detail else self.message

    def __str__(self) -> str:
        return f"{self.full_message} ({self.hint})" if self.hint else self.full_message


class InvalidRequest(BelljarError):
    pass


class CodeTooLarge(InvalidRequest):
    pass


class UnknownLanguage(InvalidRequest):
    pass


class UnknownEngine(InvalidRequest):
    pass


class UnknownEnvironment(InvalidRequest):
    pass


class Unsupported(InvalidRequest):
    pass


class LimitExceeded(InvalidRequest):
    pass


class InvalidFileName(InvalidRequest):
    pass


class InvalidVariable(InvalidRequest):
    pass


class NetworkRefused(InvalidRequest):
    pass


class PackageRefused(InvalidRequest):
    pass


class InvalidModule(InvalidRequest):
    pass


class ModuleStopped(BelljarError):
    """`belljar.wasm`: a call that was cut short has no value to return."""

    def __init__(self, message: str, *, hint: str = "", status: str = "trap") -> None:
        super().__init__(message, hint=hint)
        self.status = status
        """timeout, out_of_memory, out_of_fuel or trap"""


class Unavailable(BelljarError):
    pass


class EngineUnavailable(Unavailable):
    pass


class EnvironmentUnavailable(Unavailable):
    pass


class NetworkUnavailable(Unavailable):
    pass


class ServerUnreachable(Unavailable):
    pass


class ServerRefused(BelljarError):
    """`url=`: what only a server says; everything else is the exception that it is here."""

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        code: str = "",
        retryable: bool = False,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.code = code
        """unauthenticated, quota_exceeded, queue_full, not_found, shutting_down …"""
        self.retryable = retryable
        """The same request may succeed later without being changed."""
        self.retry_after_s = retry_after_s


class EngineError(BelljarError):
    pass


class TrailError(BelljarError):
    """Nothing runs that is not written down first, and no result is told that is not."""

    def __init__(self, message: str, *, hint: str = "", ran: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.ran = ran
        """Whether something did run, and only its end could not be written."""


class Closed(BelljarError):
    pass


class SandboxEnded(Closed):
    def __init__(self, message: str, *, hint: str = "", ran: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.ran = ran
        """Whether it ended while the code ran, rather than before."""


class SandboxLost(BelljarError):
    pass


class Busy(BelljarError):
    pass


class SandboxFileError(BelljarError):
    def __init__(self, message: str, *, hint: str = "", kind: str = "os") -> None:
        super().__init__(message, hint=hint)
        self.kind = kind
        """missing, exists, not_a_file, not_a_folder, not_empty, link, name, read_only, forbidden,
        full, too_large, too_many, busy, elsewhere, closed, unsupported, garbled or os"""


class SandboxFileMissing(SandboxFileError):
    pass


class SandboxFileExists(SandboxFileError):
    pass
