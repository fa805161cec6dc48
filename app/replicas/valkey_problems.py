"""Problems of a connection to a Valkey or Redis server: their kind for metrics, and words with what to do."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from redis.exceptions import AuthenticationError, NoPermissionError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ...configs.replicas import ValkeyConfig
from ..errors import PasswordError, ReplicaError, TlsFileError
from .valkey_server import TIMEOUT_S

_HOST_MISMATCH = (62, 64)
"""OpenSSL's codes of a certificate that is good, but of another host name or address."""

_CLIENT = "replicas.valkey.tls.certFile must have one of an authority that the server knows"

_CONNECTING = re.compile(r"Error -?\d+ connecting to (\S+)\. (.*?)\.?")
"""The words of the client's library: address and reason."""


class ProblemKind(StrEnum):
    """Kind of a problem."""

    TLS = "tls"
    """Certificates do not fit, or a file of them cannot be read."""
    LOGIN = "login"
    """User, password or rights."""
    NO_REPLY = "no_reply"
    """Nothing comes in time."""
    UNREACHED = "unreached"
    """No connection, or it broke."""
    SERVER = "server"
    """The server is too old, or not the one that is wanted."""


@dataclass(frozen=True, slots=True)
class ConnectionProblem:
    """One problem.

    Attributes:
        kind: label of the metric.
        text: what is wrong, and what to do.
    """

    kind: ProblemKind
    text: str


def problem_of(error: Exception, config: ValkeyConfig) -> ConnectionProblem:
    """Return the problem that an error stands for."""
    for each in _causes(error):
        if (found := _known(each, config)) is not None:
            return found
    if connecting := _CONNECTING.fullmatch(str(error)):
        text = f"cannot connect to the server at {connecting[1]}: {connecting[2]}"
        return ConnectionProblem(ProblemKind.UNREACHED, text)
    return ConnectionProblem(ProblemKind.UNREACHED, f"the server cannot be used: {error}")


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and those that the client's library has wrapped, the first cause first."""
    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in chain:
        chain.append(current)
        current = current.__cause__ or current.__context__
    yield from reversed(chain)


def _known(error: BaseException, config: ValkeyConfig) -> ConnectionProblem | None:
    match error:
        case TlsFileError() | ssl.SSLError():
            return ConnectionProblem(ProblemKind.TLS, _tls_words(error))
        case PasswordError():
            return ConnectionProblem(ProblemKind.LOGIN, str(error))
        case AuthenticationError() | ResponseError():
            return _reply(error, config)
        case ReplicaError():
            return ConnectionProblem(ProblemKind.SERVER, f"the server cannot be used: {error}")
        case TimeoutError() | RedisTimeoutError():
            hint = "; does it listen for TLS?" if config.tls.enabled else ""
            text = f"the server does not reply within {TIMEOUT_S:g} s{hint}"
            return ConnectionProblem(ProblemKind.NO_REPLY, text)
        case ConnectionResetError():
            return ConnectionProblem(
                ProblemKind.UNREACHED, f"the server closed the connection{_hint(config)}"
            )
        case _:
            return None


def _reply(error: AuthenticationError | ResponseError, config: ValkeyConfig) -> ConnectionProblem:
    if isinstance(error, NoPermissionError):
        text = f"the user lacks a right on the server: {error}; docs/replicas.md has those that it needs"
        return ConnectionProblem(ProblemKind.LOGIN, text)
    if isinstance(error, AuthenticationError):
        of_sentinels = ", and in its sentinel for that of Sentinels" if config.sentinel.addresses else ""
        text = f"the server refuses the login: {error}; see username and passwordFile in replicas.valkey{of_sentinels}"
        return ConnectionProblem(ProblemKind.LOGIN, text)
    if "unknown command" in str(error).lower():
        text = "the server is too old: it has no sharded channels; Redis 7 or Valkey has them"
        return ConnectionProblem(ProblemKind.SERVER, text)
    return ConnectionProblem(ProblemKind.SERVER, f"the server cannot be used: {error}")


def _tls_words(error: TlsFileError | ssl.SSLError) -> str:
    if isinstance(error, TlsFileError):
        return str(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        what = f"the server's certificate is refused: {error.verify_message}"
        if error.verify_code in _HOST_MISMATCH:
            return f"{what}; use a name that it has, or replicas.valkey.tls.checkHostname: false"
        return f"{what}; replicas.valkey.tls.caFile must have the authority that signed it"
    if "ALERT" in (error.reason or ""):
        return f"the server refuses the certificate of this client ({error.reason}); {_CLIENT}"
    return f"the files of replicas.valkey.tls, or the server's TLS, cannot be used: {error.reason or error}"


def _hint(config: ValkeyConfig) -> str:
    if not config.tls.enabled:
        return "; if it wants TLS, set replicas.valkey.tls.enabled"
    return f"; if it wants a certificate of its clients, {_CLIENT}"
