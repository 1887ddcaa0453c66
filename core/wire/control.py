"""The control plane: gRPC on a Unix socket in a private directory, with JSON messages.

A few small calls do not need generated stubs; what they need is authentication, a size bound, a deadline on every
call and errors of our own tree. gRPC's generic handlers give that with the messages of `messages.py` as the only
schema. Each call carries HMAC(secret, method, body) in its metadata, so a process without the job's secret can neither
order nor report anything; each answer carries one, too, so nobody else who listens at the address is believed.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent import futures
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import grpc

from trimtab.core.errors import Refused, TrimtabError, WireError
from trimtab.core.wire.commands import JobAnswer, JobCommand
from trimtab.core.wire.encode import from_json, to_json
from trimtab.core.wire.messages import PROTOCOL, PsReport, PsSync, WorkerOrders, WorkerSync
from trimtab.core.wire.secrets import proof, same

log = logging.getLogger(__name__)

_PS_SYNC = "/trimtab.ParameterServer/Sync"
_WORKER_SYNC = "/trimtab.Controller/WorkerSync"
_JOB_COMMAND = "/trimtab.Controller/JobCommand"
_REPLY = b"reply to "
_PROOF, _PROTOCOL = "x-trimtab-proof", "x-trimtab-protocol"
MAX_MESSAGE_BYTES = 64 << 20  # evaluation scores and 512 copy entries stay far below
MAX_ORDER_BYTES = 8 << 20  # of the controller to a parameter server: lists of at most 512 vshards
_MOST_CALLS = 1024  # waiting or being answered; more are told to come again
_CHANNEL = [
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.use_local_subchannel_pool", 1),  # a restarted peer on the same path must not meet a cached dead channel
    ("grpc.initial_reconnect_backoff_ms", 30),
    ("grpc.min_reconnect_backoff_ms", 30),
    ("grpc.max_reconnect_backoff_ms", 60),
    ("grpc.enable_http_proxy", 0),
]

Reply = TypeVar("Reply")


class Unreachable(WireError):
    """Nobody answered within the deadline, or the peer broke off: trying again may help."""


@dataclass(frozen=True)
class Method:
    """One method of a server: its path, what a request is, and who answers it."""

    path: str
    request: type[Any]
    handle: Callable[[Any], object]


class ControlServer:
    """One gRPC server with the methods of one service."""

    def __init__(
        self,
        address: str,
        secret: bytes,
        methods: Sequence[Method],
        threads: int,
        most_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        """Listens at once on the Unix socket path `address`; requests may have `most_bytes`.

        `refused` counts the calls that were not accepted since then. gRPC itself ends what is no call or too long.

        Raises:
            WireError: the address cannot be bound.
        """
        self.refused = 0
        self._lock = threading.Lock()
        service = methods[0].path[1:].split("/")[0]
        calls = {
            method.path.split("/")[-1]: grpc.unary_unary_rpc_method_handler(self._call(method, secret))
            for method in methods
        }
        handler = grpc.method_handlers_generic_handler(service, calls)
        self._pool = futures.ThreadPoolExecutor(threads, thread_name_prefix="control")
        options = [*_CHANNEL, ("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", most_bytes)]
        self._server = grpc.server(
            self._pool, handlers=(handler,), options=options, maximum_concurrent_rpcs=_MOST_CALLS
        )
        try:
            bound = self._server.add_insecure_port(f"unix:{address}")
        except RuntimeError as error:
            raise WireError(f"control address {address}: cannot be bound: {error}") from error
        if not bound:
            raise WireError(f"control address {address}: cannot be bound")
        with contextlib.suppress(OSError):
            Path(address).chmod(0o600)  # its directory is private anyway
        self._server.start()

    def _call(self, method: Method, secret: bytes) -> Callable[[bytes, Any], bytes]:
        """What answers the calls of one method: first the proof, then the body's shape, then the handler."""
        path = method.path.encode()

        def refuse(context: Any, code: grpc.StatusCode, text: str) -> None:
            with self._lock:
                self.refused += 1
            context.abort(code, text)

        def call(body: bytes, context: Any) -> bytes:
            metadata = dict(context.invocation_metadata())
            spoken = metadata.get(_PROTOCOL)
            if spoken != str(PROTOCOL):
                refuse(context, grpc.StatusCode.FAILED_PRECONDITION, f"protocol {str(spoken)[:20]} is not {PROTOCOL}")
            mac = proof(secret, path, body)
            if not same(str(metadata.get(_PROOF, "")).encode(), mac.hex().encode()):
                refuse(context, grpc.StatusCode.UNAUTHENTICATED, "wrong secret")
            try:
                answer = to_json(method.handle(from_json(method.request, body)))
            except Refused as error:
                refuse(context, grpc.StatusCode.PERMISSION_DENIED, str(error))
            except TrimtabError as error:
                refuse(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
            context.set_trailing_metadata(((_PROOF, proof(secret, _REPLY + path, mac, answer).hex()),))
            return answer

        return call

    def close(self, grace_seconds: float = 0.5) -> None:
        """Stop answering; calls in flight get `grace_seconds`."""
        self._server.stop(grace_seconds).wait()
        self._pool.shutdown(wait=False, cancel_futures=True)


def serve_ps(address: str, secret: bytes, ps_sync: Callable[[PsSync], PsReport]) -> ControlServer:
    """A parameter server's control plane at the Unix socket `address`."""
    methods = (Method(_PS_SYNC, PsSync, ps_sync),)
    return ControlServer(address, secret, methods, threads=2, most_bytes=MAX_ORDER_BYTES)


def serve_controller(
    address: str,
    secret: bytes,
    worker_sync: Callable[[WorkerSync], WorkerOrders],
    job_command: Callable[[JobCommand], JobAnswer] | None = None,
) -> ControlServer:
    """The controller's control plane at the Unix socket `address`: for workers, and for a person's commands."""
    methods = [Method(_WORKER_SYNC, WorkerSync, worker_sync)]
    if job_command is not None:
        methods.append(Method(_JOB_COMMAND, JobCommand, job_command))
    return ControlServer(address, secret, methods, threads=8)


class _Stub:
    """One peer, one method, a deadline on every call."""

    def __init__(self, address: str, secret: bytes, method: str) -> None:
        self._address, self._secret, self._method = address, secret, method
        options = [*_CHANNEL, ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES)]
        self._channel = grpc.insecure_channel(f"unix:{address}", options=options)
        self._call = self._channel.unary_unary(method)

    def call(self, request: object, reply: type[Reply], timeout_seconds: float) -> Reply:
        body = to_json(request)
        mac = proof(self._secret, self._method.encode(), body)
        metadata = ((_PROOF, mac.hex()), (_PROTOCOL, str(PROTOCOL)))
        try:
            answer, done = self._call.with_call(body, timeout=timeout_seconds, metadata=metadata)
        except grpc.RpcError as error:
            code, text = error.code(), error.details()
            if code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
                raise Refused(f"{self._method} refused: {text}") from None
            if code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION):
                raise WireError(f"{self._method} not accepted: {text}") from None
            raise Unreachable(f"{self._method} at {self._address}: {code.name.lower()}: {text}") from None
        except ValueError as error:  # the channel was closed by another thread
            raise Unreachable(f"{self._method} at {self._address}: {error}") from None
        given = str(dict(done.trailing_metadata() or ()).get(_PROOF, ""))
        wanted = proof(self._secret, _REPLY + self._method.encode(), mac, answer).hex()
        if not same(given.encode(), wanted.encode()):
            raise Unreachable(f"{self._method} at {self._address}: who answers cannot prove the job's secret")
        return from_json(reply, answer)

    def close(self) -> None:
        self._channel.close()


class PsStub:
    """The controller's handle on one parameter server."""

    def __init__(self, address: str, secret: bytes) -> None:
        self._stub = _Stub(address, secret, _PS_SYNC)

    def sync(self, request: PsSync, timeout_seconds: float) -> PsReport:
        """Say what should be, hear what is.

        Raises:
            Refused: wrong secret, job or term. Unreachable: no answer in time. WireError: another protocol.
        """
        return self._stub.call(request, PsReport, timeout_seconds)

    def close(self) -> None:
        """Give the connection up."""
        self._stub.close()


class ControllerStub:
    """A worker's handle on the controller."""

    def __init__(self, address: str, secret: bytes) -> None:
        self._stub = _Stub(address, secret, _WORKER_SYNC)

    def worker_sync(self, request: WorkerSync, timeout_seconds: float) -> WorkerOrders:
        """Report, and hear what to do.

        Raises:
            Refused: wrong secret, job or term. Unreachable: no answer in time. WireError: another protocol.
        """
        return self._stub.call(request, WorkerOrders, timeout_seconds)

    def close(self) -> None:
        """Give the connection up."""
        self._stub.close()


class JobStub:
    """A command's handle on the controller of a job."""

    def __init__(self, address: str, secret: bytes) -> None:
        self._stub = _Stub(address, secret, _JOB_COMMAND)

    def command(self, request: JobCommand, timeout_seconds: float) -> JobAnswer:
        """Ask for something, and hear how the job stands.

        Raises:
            Refused: wrong secret, or another job. Unreachable: no answer in time. WireError: another protocol.
        """
        return self._stub.call(request, JobAnswer, timeout_seconds)

    def close(self) -> None:
        """Give the connection up."""
        self._stub.close()
