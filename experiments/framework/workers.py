"""A pool of worker processes that survives crashes of a worker and Ctrl-C."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from multiprocessing import active_children, get_context, parent_process
from typing import Any

import torch

__all__ = ["run_in_pool"]

Call = tuple[Any, ...]
"""A function and its arguments."""


def run_in_pool(calls: Sequence[Call], processes: int) -> Generator[tuple[int, Any], None, None]:
    """Run calls in worker processes and yield the number and the result of each when it ends.

    A call whose process is killed has the result None.
    """
    lost: list[int] = []
    with closing(_run(calls, range(len(calls)), processes)) as done:
        for at, result in done:
            if result is None:
                lost.append(at)
            else:
                yield at, result
    # A killed process breaks its pool. Run one at a time, the remaining calls show which of them it was.
    for at in lost:
        yield from _run(calls, [at], 1)


def _run(calls: Sequence[Call], chosen: Sequence[int], processes: int) -> Generator[tuple[int, Any], None, None]:
    """Yield the result of each chosen call, or None if the pool broke before."""
    if not chosen:
        return
    others = active_children()
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=_set_up_worker) as pool:
        futures: dict[Future[Any], int] = {}
        try:
            with _ignore_interrupts():
                for at in chosen:
                    futures[pool.submit(*calls[at])] = at
            for future in as_completed(futures):
                try:
                    result = future.result()
                except BrokenProcessPool:
                    result = None
                yield futures[future], result
        except BaseException:  # mostly Ctrl-C: do not wait for running calls
            pool.shutdown(wait=False, cancel_futures=True)
            for child in active_children():
                if child not in others:
                    child.terminate()
            raise


@contextmanager
def _ignore_interrupts() -> Iterator[None]:
    """Let processes that are started in the block ignore Ctrl-C: this process terminates them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def _set_up_worker() -> None:
    """Limit torch to one thread, and end the process when its parent is killed."""
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    if (parent := parent_process()) is not None:
        parent.join()
        os._exit(1)
