"""Clients of a service: many connections that score, and a siege of good, bad and hostile requests."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pandas as pd

from elflow import FlowDensity

__all__ = ["load", "siege"]

JSON = {"Content-Type": "application/json"}
N_SIEGE_THREADS = 6
PAUSE = 0.02
"""Seconds between two requests of a thread of the siege: it lasts long, and must leave the machine usable."""


def make_body(rows: pd.DataFrame) -> bytes:
    """Rows as the body of a request."""
    return json.dumps({"rows": rows.to_dict("records")}).encode()


def load(port: int, rows: pd.DataFrame, expected: np.ndarray, connections: int, seconds: float) -> dict[str, float]:
    """Requests a second and quantiles of the time to an answer, over connections that are kept open.

    Arguments:
        port: Port of the service.
        rows: The rows to score.
        expected: Their scores, which answers must have bit by bit.
        connections: Number of connections, each with one request at a time.
        seconds: Duration.
    """
    body, right = make_body(rows), expected.tolist()
    times: list[float] = []
    starts: list[float] = []
    ends: list[float] = []
    wrong = refused = 0
    barrier = threading.Barrier(connections)

    def run() -> None:
        nonlocal wrong, refused
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        own: list[float] = []
        _ask(connection, "/score", body)  # warms up
        barrier.wait()
        starts.append(time.perf_counter())
        end = time.perf_counter() + seconds
        while (start := time.perf_counter()) < end:
            status, content = _ask(connection, "/score", body)
            if status == 200:
                own.append(time.perf_counter() - start)
                wrong += json.loads(content)["log_density"] != right
            else:  # the service says that it has too much to do
                refused += 1
        ends.append(time.perf_counter())
        connection.close()
        times.extend(own)

    threads = [threading.Thread(target=run) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # The last answers arrive after the end.
    elapsed = max(ends) - min(starts)
    p50, p99 = np.quantile(times or [np.inf], [0.5, 0.99]).tolist()
    facts = {"requests_per_second": len(times) / elapsed, "answered": len(times), "p50": p50, "p99": p99}
    return facts | {"wrong": wrong, "refused": refused}


def _ask(
    connection: http.client.HTTPConnection, path: str, body: bytes, headers: dict[str, str] = JSON
) -> tuple[int, bytes]:
    connection.request("POST", path, body, headers)
    answer = connection.getresponse()
    return answer.status, answer.read()


def siege(
    port: int, density: FlowDensity, table: pd.DataFrame, seconds: float, seed: int, watch: Callable[[], None]
) -> tuple[Counter[str], float]:
    """Outcomes of mixed requests, by kind, and their number a second.

    Good requests must be answered with the results of Python, bit by bit; bad and hostile ones with an error of the
    client, and a connection may be reset.
    """
    good = _list_good(density, table)
    outcomes: Counter[str] = Counter()
    lock = threading.Lock()
    end = time.monotonic() + seconds

    def run(number: int) -> None:
        rng = random.Random(seed * 1_000 + number)
        own: Counter[str] = Counter()
        while time.monotonic() < end:
            kind = rng.choices(("good", "bad", "hostile"), (6, 3, 1))[0]
            own[f"{kind}: {_try_once(port, kind, good, rng)}"] += 1
            time.sleep(PAUSE * rng.random() * 2)
        with lock:
            outcomes.update(own)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(N_SIEGE_THREADS)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        watch()
        time.sleep(min(1.0, seconds / 40))
    for thread in threads:
        thread.join()
    return outcomes, sum(outcomes.values()) / seconds


Good = tuple[str, bytes, Callable[[Any], bool]]
"""Address and body of a request, and a function that says whether an answer is right."""


def _list_good(density: FlowDensity, table: pd.DataFrame) -> list[Good]:
    """Requests with a function that says whether their answer is right."""
    cases: list[Good] = []
    for start in range(0, 40, 8):
        rows = table.iloc[start : start + 1 + start // 8].reset_index(drop=True)
        scores = density.score_samples(rows).tolist()
        cases.append(("/score", make_body(rows), _expect("log_density", scores)))
    drawn = density.sample(20, random_state=3).to_dict("records")
    cases.append(("/sample", json.dumps({"n": 20, "seed": 3}).encode(), _expect("rows", drawn)))
    benign = density.sample(5, given={"diagnosis": "benign"}, random_state=4).to_dict("records")
    body = json.dumps({"n": 5, "seed": 4, "given": {"diagnosis": "benign"}}).encode()
    cases.append(("/sample", body, _expect("rows", benign)))
    quantiles = density.conditional_quantile(None, "area", [0.1, 0.9], given={"radius": 14.0})[0].tolist()
    body = json.dumps({"column": "area", "given": {"radius": 14.0}, "quantiles": [0.1, 0.9]}).encode()
    cases.append(("/conditional", body, _expect("rows", [dict(zip(["q0.1", "q0.9"], quantiles, strict=True))])))
    return cases


def _expect(key: str, values: object) -> Callable[[Any], bool]:
    """Function that says whether an answer has these values."""
    return lambda answer: bool(answer[key] == values)


def _try_once(port: int, kind: str, good: list[Good], rng: random.Random) -> str:
    """Outcome of one request over a new connection."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        if kind == "good":
            path, body, is_right = rng.choice(good)
            status, content = _ask(connection, path, body)
            if status == 200:
                return "right" if is_right(json.loads(content)) else "wrong"
            return f"status {status}"
        if kind == "bad":
            path, body, headers = _make_bad(rng)
            status, _ = _ask(connection, path, body, headers)
            return "refused" if 400 <= status < 500 else f"status {status}"
        _attack(connection, rng)
        return "refused"
    except (OSError, http.client.HTTPException):
        return "lost" if kind == "good" else "refused"
    finally:
        connection.close()


def _make_bad(rng: random.Random) -> tuple[str, bytes, dict[str, str]]:
    """A request that is wrong: its text, its arguments, its address or its media type."""
    path = rng.choice(["/score", "/sample", "/impute", "/explain", "/conditional", "/density", "/nothing"])
    bodies = [
        b"",
        b"{",
        b"[" * 100_000,
        b'{"rows": [{"radius": NaN}]}',
        b'{"rows": [{"radius": 1e999}]}',
        b'{"rows": 5}',
        b'{"rows": [{"../../etc/passwd": 1}]}',
        b'{"n": 1000000000}',
        b'{"n": 10, "given": {"radius": {"low": 5, "high": 1}}, "rows": []}',
        b'{"columns": ["radius", "radius"], "column": "x"}',
        b'{"rows": [{"radius": "' + b"9" * 10_000 + b'"}]}',
        rng.randbytes(2_000),
    ]
    headers = rng.choice(
        [JSON, JSON, {"Content-Type": "text/plain"}, {"Content-Type": "application/vnd.apache.arrow.stream"}]
    )
    return path, rng.choice(bodies), headers


def _attack(connection: http.client.HTTPConnection, rng: random.Random) -> None:
    """A request that breaks the protocol, or ends in the middle."""
    connection.connect()
    assert connection.sock is not None
    lines = [
        b"POST /score HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n{",
        b"POST /score HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99999999999999999999\r\n\r\n",
        b"POST /score HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nZZZ\r\n",
        b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        b"POST /score HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ",
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        rng.randbytes(500),
    ]
    connection.sock.sendall(rng.choice(lines))
    connection.sock.settimeout(0.2)
    with suppress(TimeoutError):
        connection.sock.recv(1024)
