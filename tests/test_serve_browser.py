"""The page in a real browser: pictures move with the conditions, dropped rows are scored, and names are text."""

import re
import shutil

import numpy as np
import pandas as pd
import pytest
from _service import serving

import elflow
from elflow.serve import ServedModel

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="no Chromium: install Debian's package chromium"),
]
HOSTILE = "<img src=x onerror=document.documentElement.dataset.owned=1>'\"&"
WAIT = 60_000
"""Milliseconds: a machine may be busy."""


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    size = rng.normal(10, 2, 300)
    kinds = rng.choice(["plain", HOSTILE], 300)
    return pd.DataFrame({"size": size, HOSTILE: 3 * size + rng.normal(size=300), "kind": kinds})


@pytest.fixture(scope="module")
def client(table):
    options = {"transforms": 1, "units": 4, "hidden_features": (8,)}
    density = elflow.FlowDensity(max_steps=60, members=["cholesky", "gaussian"], flow_options=options, random_state=0)
    with serving([ServedModel(HOSTILE, density.fit(table))]) as running:
        yield running


@pytest.fixture(scope="module")
def browser():
    from playwright import sync_api as playwright  # `make test` installs it

    with playwright.sync_playwright() as api:
        started = api.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def page(browser, client):
    """The page, loaded, without any error on its console."""
    opened = browser.new_page(viewport={"width": 390, "height": 800})
    problems = []
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    opened.on("request", lambda request: problems.append(request.url) if client.address not in request.url else None)
    opened.goto(client.address)
    opened.wait_for_selector("#quantile-table table", timeout=WAIT)
    yield opened
    assert [problem for problem in problems if not problem.startswith(("data:", "blob:"))] == []
    assert opened.evaluate("document.documentElement.dataset.owned") is None
    opened.close()


def read_curve(page):
    return page.locator("#chart path.curve").get_attribute("d")


def set_slider(page, column, value):
    """Move the slider of a column, as a key or a pointer does."""
    control = page.locator("fieldset", has=page.get_by_text(column, exact=True))
    control.locator("select.how").select_option("is")
    slider = control.locator("input[type=range]")
    slider.evaluate("(node, value) => { node.value = value; node.dispatchEvent(new Event('input')); }", str(value))


def test_a_slider_moves_the_picture(page):
    page.locator("#second").select_option("")
    before = read_curve(page)
    set_slider(page, HOSTILE, 24)
    page.wait_for_selector("#summary:has-text('to')")
    page.wait_for_selector("#picture-title:has-text('= 24')", timeout=WAIT)
    low = read_curve(page)
    assert low != before
    # size is about a third of the other column: 8 given 24, and 12 given 36
    median = page.locator("#quantile-table td").nth(3)
    set_slider(page, HOSTILE, 36)
    page.wait_for_selector("#picture-title:has-text('= 36')", timeout=WAIT)
    assert read_curve(page) != low
    for _ in range(100):
        if 11 < float(median.text_content()) < 13:
            break
        page.wait_for_timeout(200)
    assert 11 < float(median.text_content()) < 13


def test_a_small_part_of_a_scale_is_magnified(page):
    zooms = page.evaluate(
        """async () => {
            const { findZoom } = await import("/chart.js");
            const column = { name: "a", kind: "continuous", low: 0, high: 100 };
            const spread = (width) => Array.from({ length: 50 }, (_, i) => ({ a: 70 + (width * i) / 49 }));
            return [0.0001, 1, 1.1, 20, 60].map((width) => findZoom(column, spread(width)));
        }"""
    )
    assert zooms == [524288, 32, 32, 1, 1]


def test_two_columns_and_new_rows(page):
    page.locator("#second").select_option("1")
    page.wait_for_selector("#chart path.contour", state="attached", timeout=WAIT)
    assert page.locator("#chart svg").get_attribute("aria-label").startswith("How common values of size and <img")
    assert page.locator("#second option:disabled").all_text_contents() == ["size"]
    page.locator("#n").fill("7")
    page.locator("#draw button").first.click()
    page.wait_for_selector("#drawn tbody tr", timeout=WAIT)
    assert page.locator("#drawn tbody tr").count() == 7
    with page.expect_download() as waiting:
        page.locator("#download-rows").click()
    lines = pd.read_csv(waiting.value.path())
    assert lines.columns.tolist() == ["size", HOSTILE, "kind"]
    assert len(lines) == 7


def test_dropped_rows_are_scored_and_explained(page, table):
    rows = table[:5].copy()
    rows.loc[2, HOSTILE] = 90.0  # thirty times the size would be usual
    rows["note"] = "unused"
    text = rows.to_csv(index=False)
    page.evaluate(
        """(text) => {
            const data = new DataTransfer();
            data.items.add(new File([text], "rows.csv"));
            const drop = new DragEvent("drop", { dataTransfer: data, bubbles: true });
            document.getElementById("check").dispatchEvent(drop);
        }""",
        text,
    )
    page.wait_for_selector("#checked tbody tr", timeout=WAIT)
    first = page.locator("#checked tbody tr").first
    assert first.locator("td").first.text_content() == "3"
    assert "more unusual than all rows" in first.text_content()
    assert first.locator("td.odd").count() >= 1
    assert re.search(r"usually .* in rows like this", first.text_content())
    assert "Columns that the model does not know: note" in page.locator("#checked-summary").text_content()
    page.locator("#text").fill("size\n1")
    page.locator("#check-text").click()
    page.wait_for_selector("#problem:has-text('There is no column named')", timeout=WAIT)


def test_the_page_is_accessible(page):
    """Every control has a name, and nothing is wider than a phone."""
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll("input, select, textarea, button")].filter((node) =>
            !(node.getAttribute("aria-label") || node.textContent.trim() && node.tagName === "BUTTON"
              || node.labels && [...node.labels].some((label) => label.textContent.trim()))
            ).map((node) => node.outerHTML)"""
    )
    assert unnamed == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"


def test_the_documentation_of_the_api(browser, client):
    opened = browser.new_page()
    opened.goto(f"{client.address}/docs")
    opened.wait_for_selector("section.card h2:has-text('POST /score')", timeout=WAIT)
    assert opened.locator("section.card").count() >= 10
    opened.close()
