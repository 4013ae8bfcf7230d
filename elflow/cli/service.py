"""Commands that answer questions over HTTP: `elflow serve` and `elflow explore`."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from elflow._interrupts import Interrupted
from elflow.cli import _options
from elflow.cli._terminal import note

if TYPE_CHECKING:
    from elflow.serve import ServedModel
    from elflow.serve.server import Settings

Models = Annotated[
    list[str],
    typer.Argument(help="Models written by `elflow fit`; NAME=FILE names one.", metavar="MODEL...", show_default=False),
]
Host = Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all addresses of the machine.")]
Port = Annotated[int, typer.Option(help="Port to listen on; 0 for any that is free.", min=0, max=65535)]
TOKEN_VARIABLE = "ELFLOW_TOKEN"


def serve(
    models: Models,
    host: Host = "127.0.0.1",
    port: Port = 8765,
    workers: Annotated[int, typer.Option(help="Number of processes, which share the models.", min=1)] = 1,
    threads: Annotated[int, typer.Option(help="Number of CPU threads of each process.", min=1)] = 1,
    max_rows: Annotated[int, typer.Option(help="Maximum number of rows of a request.", min=1)] = 100_000,
    max_bytes: Annotated[
        str, typer.Option(help="Maximum size of a request, such as 500kB or 32MiB.", metavar="SIZE")
    ] = "32MiB",
    max_seconds: Annotated[float, typer.Option(help="Maximum number of seconds until an answer.", min=0.001)] = 30.0,
    max_requests: Annotated[
        int, typer.Option(help="Maximum number of requests under way in each process.", min=1)
    ] = 128,
    token_file: Annotated[
        Path | None,
        typer.Option(help=f"File with a secret that requests must have; or set {TOKEN_VARIABLE}.", show_default=False),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="Name by which clients address the service. Repeatable.", metavar="NAME", show_default=False),
    ] = None,
) -> None:
    """Answer questions about models over HTTP: scores, samples, reasons, conditional distributions.

    \b
    Examples:
      elflow serve model.elf
      elflow serve a.elf b.elf --port 8000 --workers 2
      curl localhost:8765/score --json '{"rows": [{"size": 1.5, "kind": "a"}]}'

    The address / is a page to explore the models, and /docs describes the
    API. SIGTERM and Ctrl-C end the service after the requests under way.
    """
    from elflow.serve import Limits
    from elflow.serve.server import Settings, run

    with _options.rename_argument("--max-memory", "--max-bytes"):
        n_bytes = _options.parse_memory(max_bytes)
    limits = Limits(max_rows, n_bytes or 1, max_seconds, max_requests)
    token = _read_token(token_file)
    settings = Settings(host, port, workers, threads, limits, token, tuple(allow_host or ()))
    _note_if_open(settings)
    served = _load(models)
    with suppress(Interrupted):  # the usual end of a service
        run(served, settings, lambda address: note(f"serving {address}, documented at {address}/docs"))


def explore(
    models: Models,
    host: Host = "127.0.0.1",
    port: Port = 8765,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
) -> None:
    """Explore models in the browser: densities, conditions, new rows, and reasons why rows are unusual.

    \b
    Example:
      elflow explore model.elf

    If the variable ELFLOW_TOKEN is set, the page asks for this secret.
    Ctrl-C ends it.
    """
    from elflow.serve.server import Settings, run

    def show_address(address: str) -> None:
        note(f"explore {address} in a browser; Ctrl-C ends the service")
        if browser:
            _open_later(address)

    settings = Settings(host, port, token=_read_token(None))
    _note_if_open(settings)
    served = _load(models)
    with suppress(Interrupted):
        run(served, settings, show_address)


def _open_later(address: str) -> None:
    """Open a page when the service, which starts now, has answered once."""
    import threading
    import time
    import urllib.request
    import webbrowser

    def wait() -> None:
        for _ in range(100):
            try:
                urllib.request.urlopen(f"{address}/healthz", timeout=1)
                break
            except OSError:
                time.sleep(0.1)
        webbrowser.open(address)

    threading.Thread(target=wait, daemon=True).start()


def _load(models: list[str]) -> list[ServedModel]:
    from elflow.serve import load_models

    with _options.rename_argument("models", "MODEL"), _options.rename_argument("path", "MODEL"):
        return load_models(models)


def _note_if_open(settings: Settings) -> None:
    if settings.token is None and not settings.is_loopback:
        note(f"warning: everybody who reaches {settings.host} can use the service; set {TOKEN_VARIABLE} to a secret")


def _read_token(path: Path | None) -> str | None:
    """The secret from a file or the environment: not from the command line, which other users can see."""
    if path is None:
        return os.environ.get(TOKEN_VARIABLE, "").strip() or None
    token = path.read_text(encoding="utf-8").strip()
    if not token:
        raise ValueError(f"--token-file must have a secret in it, got {path}, which is empty")
    return token
