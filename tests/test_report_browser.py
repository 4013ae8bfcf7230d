"""The report in a real browser: names and values of users are text, and never run."""

import re
import shutil
import subprocess

import numpy as np
import pandas as pd
import pytest
from _command import QUICK, succeeds

from elflow.report.html import CONTENT_POLICY

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="no Chromium: install Debian's package chromium"),
]
OWN = "document.documentElement.setAttribute('owned','')"
"""What an attacker would run: it leaves a trace in the page."""
PAYLOADS = [
    f"<script>{OWN}</script>",
    f"</title></style></svg><script>{OWN}</script>",
    f'"><img src=x onerror="{OWN}">',
    f"'><svg onload={OWN}>",
    f"<details open ontoggle={OWN}>",
    f"<a href=javascript:{OWN}>",
    f"]]><script>{OWN}</script>",
    f"-->&lt;script&gt;<script>{OWN}</script>",
    f"$\\sum_x$ <iframe srcdoc='<script>parent.{OWN}</script>'>",
]


def render(path, profile):
    """The page as the browser has it after running everything that it would run."""
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=2000"]
    command += [f"--user-data-dir={profile}", "--dump-dom", path.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout


def test_hostile_names_are_text(tmp_path):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({name: rng.normal(size=200) for name in PAYLOADS[:4]})
    table[PAYLOADS[4]] = rng.choice(PAYLOADS[5:8], 200)
    table[PAYLOADS[8]] = rng.poisson(3, 200)
    table[PAYLOADS[5]] = 1.5  # a warning names this column, and the report repeats the warning
    # File names cannot contain a slash.
    data, model = tmp_path / f"{PAYLOADS[2]}.csv", tmp_path / f"{PAYLOADS[3]}.elf"
    table.to_csv(data, index=False)
    succeeds("fit", data, "-o", model, "-q", *QUICK)
    succeeds("report", model, data, "-o", tmp_path / "report.html")
    content = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert CONTENT_POLICY in content.replace("&#x27;", "'")
    pages = {
        "safe": content,
        # Names must be escaped even without the policy, which forbids the page to run scripts.
        "escaped": re.sub("<meta http-equiv=[^>]*>", "", content),
        # The test would notice: a page that does run the scripts.
        "control": "<html><body>" + "".join(PAYLOADS) + "</body></html>",
    }
    owned = {}
    for name, page in pages.items():
        (tmp_path / f"{name}.html").write_text(page, encoding="utf-8")
        shown = render(tmp_path / f"{name}.html", tmp_path / "profile")
        owned[name] = bool(re.match(r"(<!DOCTYPE html>)?\s*<html[^>]* owned", shown))
        assert "</html>" in shown
        if name != "control":
            assert "&lt;script&gt;document" in shown
            assert not re.search(r"<(script|iframe|details|a href=.?javascript)", shown)
    assert owned == {"safe": False, "escaped": False, "control": True}
