"""Worker threads of the service, and batches of small requests that are scored together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from elflow.serve.limits import Deadline

__all__ = ["Batcher", "Lane"]

Result = TypeVar("Result")
Item = TypeVar("Item")


class Lane:
    """One thread that does the work of requests in the order of their arrival.

    The service has two: short work does not wait for long work.

    Arguments:
        name: Name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=f"elflow-{name}")

    async def run(self, work: Callable[[], Result], deadline: Deadline) -> Result:
        """The result of the work; a `Refusal` at the deadline, whether the work has begun or not."""

        def begin() -> Result:
            deadline.check()
            return work()

        future = asyncio.get_running_loop().run_in_executor(self._pool, begin)
        try:
            return await asyncio.wait_for(future, max(0.0, deadline.remaining))
        except TimeoutError:  # a timer may be a little early: the deadline itself need not be over
            raise deadline.refuse() from None

    def close(self) -> None:
        """Begin no further work."""
        self._pool.shutdown(wait=False, cancel_futures=True)


@dataclass
class _Pending(Generic[Item, Result]):
    """A request that waits for its batch."""

    item: Item
    size: int
    deadline: Deadline
    future: asyncio.Future[Result]


class Batcher(Generic[Item, Result]):
    """Small requests that arrive together are answered together.

    A batch contains all requests that have arrived while the one before was computed, up to a number of rows. So a
    single request never waits for others, and the more there are, the larger the batches.

    Arguments:
        lane: The thread that answers.
        answer: Function of several items that returns, for each, its result or the error that it raised.
        max_rows: Maximum number of rows of a batch with several requests.
        on_batch: Function that is called with the number of requests of each batch.
    """

    def __init__(
        self,
        lane: Lane,
        answer: Callable[[Sequence[Item]], Sequence[Result | Exception]],
        max_rows: int,
        on_batch: Callable[[int], None],
    ) -> None:
        self._lane = lane
        self._answer = answer
        self._max_rows = max_rows
        self._on_batch = on_batch
        self._pending: list[_Pending[Item, Result]] = []
        self._task: asyncio.Task[None] | None = None

    async def submit(self, item: Item, size: int, deadline: Deadline) -> Result:
        """The result of one item of `size` rows."""
        pending: _Pending[Item, Result] = _Pending(item, size, deadline, asyncio.get_running_loop().create_future())
        self._pending.append(pending)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._drain())
        try:
            return await asyncio.wait_for(pending.future, max(0.0, deadline.remaining))
        except TimeoutError:  # a timer may be a little early: the deadline itself need not be over
            raise deadline.refuse() from None

    async def _drain(self) -> None:
        while batch := self._take():
            self._on_batch(len(batch))
            longest = max((pending.deadline for pending in batch), key=lambda deadline: deadline.remaining)
            items = [pending.item for pending in batch]
            results: Sequence[Result | Exception]
            try:
                results = await self._lane.run(lambda items=items: self._answer(items), longest)  # type: ignore[misc]
            except Exception as error:
                results = [error] * len(batch)
            for pending, result in zip(batch, results, strict=True):
                if pending.future.done():  # too late
                    continue
                if isinstance(result, Exception):
                    pending.future.set_exception(result)
                else:
                    pending.future.set_result(result)

    def _take(self) -> list[_Pending[Item, Result]]:
        """The next batch: at least one request, and as many more as fit."""
        batch: list[_Pending[Item, Result]] = []
        n_rows = 0
        while self._pending and (not batch or n_rows + self._pending[0].size <= self._max_rows):
            pending = self._pending.pop(0)
            if not pending.future.done():
                batch.append(pending)
                n_rows += pending.size
        return batch
