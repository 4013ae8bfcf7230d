"""Helpers that run the command line in this process."""

import contextlib
import io

import numpy as np
import pandas as pd

from elflow.cli import main

QUICK = ["--max-steps", "10"]


def run(*arguments):
    """Run a command; return its exit code, standard output and standard error."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(argument) for argument in arguments])
    return code, out.getvalue(), err.getvalue()


def succeeds(*arguments):
    """Run a command that must succeed; return its standard output and standard error."""
    code, out, err = run(*arguments)
    assert code == 0, err
    return out, err


def fails(*arguments):
    """Run a command that must fail; return the one line of its error."""
    code, out, err = run(*arguments)
    assert code == 2, (code, out, err)
    assert err.startswith("elflow: error: ")
    assert err.count("\n") == 1
    assert err.endswith("\n")
    return err


def table(rows=300):
    """A table with a column of each kind."""
    rng = np.random.default_rng(0)
    days = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 300, rows), "D")
    return pd.DataFrame(
        {
            "size": rng.lognormal(size=rows),
            "count": rng.poisson(3, rows),
            "kind": rng.choice(["a", "b", "c"], rows),
            "day": days,
            "ok": rng.random(rows) < 0.3,
        }
    )
