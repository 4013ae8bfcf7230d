"""The server: a socket, and workers that share the models, each of them an event loop of uvicorn."""

from __future__ import annotations

import gc
import ipaddress
import logging
import math
import os
import signal
import socket
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import NoReturn

import torch
import uvicorn

from elflow._checks import check_count
from elflow.serve._metrics import Metrics
from elflow.serve._protocol import HttpProtocol
from elflow.serve.app import create_app
from elflow.serve.limits import Limits
from elflow.serve.models import ServedModel

__all__ = ["Settings", "run"]

LOOPBACK = ("localhost", "127.0.0.1", "[::1]", "::1")
GRACE = 30.0
"""Minimum number of seconds that requests under way have after the signal to end."""
MAX_CONNECTIONS = 512
"""Least limit of connections of a process: half of the files that a process may usually have open."""
ENDING = (signal.SIGTERM, signal.SIGINT)
"""Signals that end the service."""
KEEP_ALIVE_SECONDS = 65
"""Seconds after which an idle connection is closed."""
BACKLOG = 2048
"""Number of connections that may wait to be accepted."""
RESTART_SECONDS = 1.0
"""Minimum time between two starts of a worker."""
log = logging.getLogger("elflow.serve")


@dataclass(frozen=True)
class Settings:
    """Settings of the server.

    Arguments:
        host: Address to listen on.
        port: Port to listen on; 0 for any that is free.
        workers: Number of processes.
        threads: Number of threads of torch in each.
        limits: Limits of requests.
        token: A secret that requests must have; None for none.
        hosts: Further names of the service, by which it may be addressed.
    """

    host: str = "127.0.0.1"
    port: int = 8765
    workers: int = 1
    threads: int = 1
    limits: Limits = field(default_factory=Limits)
    token: str | None = None
    hosts: Sequence[str] = ()

    def __post_init__(self) -> None:
        check_count("workers", self.workers)
        check_count("threads", self.threads)
        if self.workers > 1 and not hasattr(os, "fork"):
            raise ValueError(f"workers must be 1 where processes cannot be forked, got {self.workers}")
        if self.token is not None and (not self.token.isprintable() or not self.token.isascii() or len(self.token) < 8):
            raise ValueError("token must have at least 8 characters, all of them printable ASCII")

    @property
    def is_loopback(self) -> bool:
        """Whether only programs of this machine reach the service."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def max_connections(self) -> int:
        """Number of connections of a process, idle ones as well, beyond which further ones are answered by 503."""
        return max(MAX_CONNECTIONS, 4 * self.limits.requests)

    @property
    def grace_seconds(self) -> int:
        """Seconds that requests under way have after the signal to end: as many as they may take."""
        return math.ceil(max(GRACE, self.limits.seconds))

    @property
    def allowed_hosts(self) -> list[str] | None:
        """Names that the header Host may have: any, if the service listens on all addresses."""
        names = [*LOOPBACK, self.host, f"[{self.host}]", *self.hosts]
        try:
            is_any = ipaddress.ip_address(self.host).is_unspecified
        except ValueError:
            is_any = False
        return None if is_any and not self.hosts else names


def run(models: Sequence[ServedModel], settings: Settings, on_ready: Callable[[str], None] = print) -> None:
    """Answer requests until the process is asked to end; requests under way are answered before it does.

    Arguments:
        models: The models.
        settings: Settings of the server.
        on_ready: Function that is called with the address of the service when it listens.
    """
    # One thread before the fork: threads of OpenMP do not survive it.
    torch.set_num_threads(1)
    for model in models:
        model.warm_up()
    gc.collect()
    gc.freeze()  # what the models consist of stays: the collector need not look at it, nor copy its shared pages
    warnings.simplefilter("ignore")  # answers carry the warnings of their rows
    metrics = Metrics(settings.workers)
    listener = _listen(settings)
    shown = f"[{settings.host}]" if ":" in settings.host else settings.host
    address = f"http://{shown}:{listener.getsockname()[1]}"

    def work(number: int) -> None:
        metrics.choose_worker(number)
        torch.set_num_threads(settings.threads)
        app = create_app(models, settings.limits, settings.token, settings.allowed_hosts, metrics)
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            http=HttpProtocol,
            ws="none",
            timeout_graceful_shutdown=settings.grace_seconds,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            backlog=BACKLOG,
            limit_concurrency=settings.max_connections,
        )
        uvicorn.Server(config).run(sockets=[listener])

    on_ready(address)
    if settings.workers == 1:
        work(0)
        return
    Supervisor(work, settings.workers).run()


def _listen(settings: Settings) -> socket.socket:
    """A listening socket, which workers inherit."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        reason = f"host and port must be free addresses of this machine ({error.strerror})"
        raise OSError(error.errno, reason, f"{settings.host}:{settings.port}") from None
    listener.listen(BACKLOG)
    listener.set_inheritable(True)
    return listener


class Supervisor:
    """Forks workers, replaces those that end, and ends all of them when it is asked to.

    The memory of the models is shared: no worker writes to it.

    Arguments:
        work: Function of the number of a worker, which runs until SIGTERM.
        count: Number of workers.
    """

    def __init__(self, work: Callable[[int], None], count: int) -> None:
        self._work = work
        self._count = count
        self._processes: dict[int, int] = {}
        self._started = [0.0] * count
        self._is_ending = False

    def run(self) -> None:
        """Supervise until SIGTERM or SIGINT, and until all workers have ended."""
        before = {number: signal.signal(number, self._end) for number in ENDING}
        try:
            for number in range(self._count):
                self._start(number)
            while self._processes:
                self._wait()
        finally:
            for signum, handler in before.items():
                signal.signal(signum, handler)

    def _start(self, number: int) -> None:
        """Start a worker, unless the end has been asked for."""
        # Blocked, a signal waits until the supervisor knows the worker, and does not run its handler in the worker.
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        try:
            if self._is_ending:
                return
            self._started[number] = time.monotonic()
            process = os.fork()
            if not process:
                self._run_worker(number)
            self._processes[process] = number
            if self._is_ending:  # other threads do not block signals: one may have come before the worker was known
                os.kill(process, signal.SIGTERM)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)

    def _run_worker(self, number: int) -> NoReturn:
        """Work in a forked process, and end it."""
        code = 1
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            # SIGINT stays blocked: a terminal sends it to all processes, and the supervisor decides.
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            self._work(number)
            code = 0
        except BaseException:
            log.exception("worker %d failed", number)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _wait(self) -> None:
        """Wait for the end of a worker, and replace it."""
        try:
            process, status = os.wait()
        except InterruptedError:
            return
        except ChildProcessError:
            self._processes.clear()
            return
        number = self._processes.pop(process, None)
        if number is None or self._is_ending:
            return
        log.error("worker %d ended (%s): starting another one", number, _describe_status(status))
        # A worker that fails at once must not keep the machine busy.
        time.sleep(max(0.0, RESTART_SECONDS - (time.monotonic() - self._started[number])))
        if not self._is_ending:
            self._start(number)

    def _end(self, signum: int, frame: FrameType | None) -> None:
        self._is_ending = True
        for process in self._processes:
            try:
                os.kill(process, signal.SIGTERM)
            except ProcessLookupError:
                continue


def _describe_status(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"signal {-code}" if code < 0 else f"exit code {code}"
