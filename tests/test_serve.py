"""The service: its answers are those of Python, bit by bit, and errors name what is wrong with a request."""

import io
import re
import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from _service import serving
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import elflow
from elflow.serve import Limits, ServedModel, load_models
from elflow.serve._answers import ScoreItem, answer_conditional, score_items
from elflow.serve._arrow import STREAM_TYPE, read_arrow, write_arrow
from elflow.serve._openapi import QUESTIONS
from elflow.serve._picture import draw_density
from elflow.serve._protocol import HttpProtocol
from elflow.serve._requests import ConditionalRequest, DensityRequest
from elflow.serve.limits import Deadline, Refusal
from elflow.serve.server import Settings

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::elflow.tabular.OutsideBoundsWarning"),
    pytest.mark.filterwarnings("ignore::elflow.tabular.PoorSampleWarning"),
    pytest.mark.filterwarnings("ignore:column .* has categories without an order"),
]
TINY = {"transforms": 1, "units": 4, "hidden_features": (8,)}


def make_table(n=300):
    rng = np.random.default_rng(0)
    size = rng.normal(size=n)
    return pd.DataFrame(
        {
            "size": size,
            "weight": size + rng.normal(size=n),
            "share": rng.uniform(size=n),
            "count": rng.poisson(3, n),
            "kind": rng.choice(["a", "b", "<c>"], n),
            "flag": rng.random(n) < 0.3,
            "day": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 100, n), unit="D"),
        }
    )


def fit(table, **options):
    members = ["cholesky", "gaussian"]
    density = elflow.FlowDensity(max_steps=20, members=members, flow_options=TINY, random_state=0, **options)
    return density.fit(table)


@pytest.fixture(scope="module")
def table():
    return make_table()


@pytest.fixture(scope="module")
def density(table):
    return fit(table, columns={"share": (0, 1)})


@pytest.fixture(scope="module")
def given_size(table):
    members = ["cholesky", "gaussian"]
    model = elflow.FlowDensity(max_steps=10, members=members, flow_options=TINY, random_state=0)
    return model.fit(table[["weight"]], context=table[["size"]])


@pytest.fixture(scope="module")
def client(density, given_size):
    models = [ServedModel("all", density), ServedModel("weights", given_size)]
    with serving(models, limits=Limits(rows=2_000, bytes=2**20)) as running:
        yield running


def as_rows(frame):
    """Rows of a table for JSON."""
    return [{name: to_plain(value) for name, value in row.items()} for row in frame.to_dict("records")]


def to_plain(value):
    return value.isoformat() if isinstance(value, pd.Timestamp) else getattr(value, "item", lambda: value)()


def to_body(frame):
    sink = io.BytesIO()
    table = pa.Table.from_pandas(frame, preserve_index=False)
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


# --- answers ----------------------------------------------------------------------------------------------------------


def test_scores_are_those_of_python(client, density, table):
    scores = density.score_samples(table[:20])
    answer = client.post("/score", {"rows": as_rows(table[:20]), "anomaly": True}).json
    assert answer["log_density"] == scores.tolist()
    assert answer["anomaly_score"] == density.percentiles(scores).tolist()
    arrow = client.post("/score", to_body(table[:20]), {"Content-Type": STREAM_TYPE, "Accept": STREAM_TYPE})
    assert arrow.status == 200, arrow.body
    assert pa.ipc.open_stream(arrow.body).read_all()["log_density"].to_pylist() == scores.tolist()


def test_requests_that_arrive_together_have_the_scores_that_they_have_alone(client, density, table):
    scores = density.score_samples(table[:40]).tolist()
    rows = as_rows(table[:40])
    bad = {"rows": [{"size": "x"}]}
    barrier = threading.Barrier(16)

    def ask(number):
        barrier.wait()
        if number % 4 == 3:
            return client.post("/score", bad).status
        return [client.post("/score", {"rows": rows[i : i + 2]}).json["log_density"] for i in range(number, 36, 16)]

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(ask, range(16)))
    for number, answer in enumerate(answers):
        expected = 422 if number % 4 == 3 else [scores[i : i + 2] for i in range(number, 36, 16)]
        assert answer == expected
    text = client.get("/metrics").body.decode()
    counts = {line.split()[0]: float(line.split()[1]) for line in text.splitlines() if not line.startswith("#")}
    assert counts["elflow_score_batches_total"] < counts["elflow_batched_requests_total"]


def test_density_zero_is_text_and_has_a_warning(client, density, table):
    rows = as_rows(table[:2])
    rows[1]["share"] = 2.0
    answer = client.post("/score", {"rows": rows, "anomaly": True}).json
    assert answer["log_density"][1] == "-Infinity"
    assert answer["log_density"][0] == density.score_samples(table[:1])[0]
    assert answer["anomaly_score"][1] == 1e300
    assert "share" in answer["warnings"][0]


def test_samples_are_those_of_python(client, density):
    plain = client.post("/sample", {"n": 5, "seed": 1}).json["rows"]
    assert plain == as_rows(density.sample(5, random_state=1))
    conditions = {"size": {"low": 0, "high": 1}, "kind": ["a", "<c>"], "flag": True, "day": "2020-02-01"}
    in_python = {"size": (0.0, 1.0), "kind": ["a", "<c>"], "flag": True, "day": "2020-02-01"}
    rows = client.post("/sample", {"n": 4, "seed": 2, "given": conditions}).json["rows"]
    assert rows == as_rows(density.sample(4, given=in_python, random_state=2))


def test_filled_rows_are_those_of_python(client, density, table):
    holes = table[:3].drop(columns="weight")
    filled = density.impute(holes, method="median")
    assert client.post("/impute", {"rows": as_rows(holes), "method": "median"}).json["rows"] == as_rows(filled)
    arrow = client.post("/impute?method=median", to_body(holes), {"Content-Type": STREAM_TYPE})
    assert arrow.json["rows"] == as_rows(filled)


def test_reasons_are_those_of_python(client, density, table):
    cells = client.post("/explain", {"rows": as_rows(table[:2]), "columns": ["size", "kind"], "level": 0.8}).json[
        "cells"
    ]
    expected = density.explain(table[:2], ["size", "kind"], 0.8)
    for name in ("row", "column", "value", "tail_probability", "surprise", "low", "high"):
        assert [cell[name] for cell in cells] == expected[name].tolist(), name


def test_conditional_distributions_are_those_of_python(client, density, table):
    rows = as_rows(table[:2])
    answer = client.post("/conditional", {"column": "size", "rows": rows, "quantiles": [0.1, 0.9], "cdf": True}).json
    quantiles = density.conditional_quantile(table[:2], "size", [0.1, 0.9])
    assert [[row["q0.1"], row["q0.9"]] for row in answer["rows"]] == quantiles.tolist()
    assert [row["cdf"] for row in answer["rows"]] == density.conditional_cdf(table[:2], "size").tolist()
    given = {"column": "kind", "given": {"size": 0.5}, "proba": True}
    (row,) = client.post("/conditional", given).json["rows"]
    assert list(row.values()) == density.conditional_proba(None, "kind", given={"size": 0.5}).iloc[0].tolist()


def test_near_quantiles_have_names_of_their_own(client):
    levels = [0.5, 0.50000001, 1e-05]
    (row,) = client.post("/conditional", {"column": "size", "given": {"kind": "a"}, "quantiles": levels}).json["rows"]
    assert list(row) == ["q0.5", "q0.50000001", "q1e-05"]
    assert row["q1e-05"] < row["q0.5"] < row["q0.50000001"]


def test_models_by_name_and_their_context(client, given_size, table):
    assert client.get("/models").json == {"models": ["all", "weights"]}
    facts = client.get("/model?model=weights").json
    assert [column["name"] for column in facts["context"]] == ["size"]
    rows = as_rows(table[["weight", "size"]][:3])
    answer = client.post("/score?model=weights", {"rows": rows}).json
    assert (
        answer["log_density"] == given_size.score_samples(table[["weight"]][:3], context=table[["size"]][:3]).tolist()
    )
    drawn = client.post("/sample?model=weights", {"n": 2, "context": [{"size": 0.5}], "seed": 0}).json["rows"]
    assert drawn == as_rows(given_size.sample(2, context=pd.DataFrame({"size": [0.5]}), random_state=0))
    assert client.post("/density?model=weights", {"columns": ["weight"], "context": [{"size": 0.5}]}).status == 200
    assert "context must have rows of" in client.post("/sample?model=weights", {"n": 2}).detail
    assert client.post("/score?model=../all", {"rows": rows}).status == 404


@pytest.mark.parametrize(
    ("columns", "grid"),
    [
        (["size"], "line"),
        (["kind"], "bars"),
        (["count"], "bars"),
        (["day"], "line"),
        (["size", "weight"], "mesh"),
        (["kind", "size"], "lines"),
        (["kind", "flag"], "table"),
        (["day", "count"], "mesh"),
    ],
    ids=str,
)
def test_pictures_of_all_kinds(client, columns, grid):
    others = {
        name: condition for name, condition in {"share": {"low": 0.2}, "weight": 0.5}.items() if name not in columns
    }
    picture = client.post("/density", {"columns": columns, "given": others, "precision": "quick"}).json
    assert picture["grid"] == grid
    assert set(picture["columns"]) == set(columns)
    if grid in ("bars", "table"):
        assert np.sum(picture["probability"]) == pytest.approx(1)
    assert 0.5 < picture["mass"] < 2
    assert len(picture["samples"]) == 48


def test_pictures_of_many_categories_have_the_most_common_ones():
    rng = np.random.default_rng(0)
    codes = np.minimum(rng.geometric(0.03, 2_000), 60) - 1
    # in the order of the dtype, in which the most common ones are last
    words = pd.Categorical.from_codes(59 - codes, categories=[f"word {i:02}" for i in range(60)])
    table = pd.DataFrame({"word": words, "size": rng.normal(size=2_000), "flag": rng.random(2_000) < 0.5})
    model = ServedModel("words", fit(table))

    def draw(*columns, **given):
        return draw_density(model, Limits(), DensityRequest(columns=list(columns), given=given, precision="quick"))

    picture = draw("word")
    assert (len(picture["x"]), picture["hidden"]) == (40, 20)
    assert picture["x"] == sorted(picture["x"])
    assert {f"word {i}" for i in range(35, 60)} <= set(picture["x"])
    share = table["word"].isin(picture["x"]).mean()
    assert np.sum(picture["probability"]) == pytest.approx(share, abs=0.05)
    assert share < 0.95  # those that are hidden count
    assert draw("word", flag=True)["hidden"] == 20
    assert [draw("size", "word")["hidden"], draw("word", "flag")["hidden"], draw("flag")["hidden"]] == [48, 48, 0]


def test_the_picture_is_the_conditional_density():
    """Of columns of which two are nearly the same, so that a mesh of squares would miss the density."""
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 1_000))
    table = pd.DataFrame({"a": a, "b": 0.8 * a + 0.6 * b, "c": 0.8 * a + 0.6 * b + 0.02 * rng.normal(size=1_000)})
    density = fit(table)
    with serving([ServedModel("normal", density)]) as client:
        line = client.post("/density", {"columns": ["b"], "given": {"a": 1.0}}).json
        mesh = client.post("/density", {"columns": ["b", "c"], "given": {"a": 1.0}}).json
    x = pd.DataFrame({"b": line["x"]})
    expected = density.conditional_density(x, "b", given={"a": 1.0}, n_points=1_024)
    found = np.array(line["density"])
    assert np.trapezoid(np.abs(found - expected), line["x"]) < 0.05
    y = np.array(mesh["y"])
    assert (y.max(1) - y.min(1)).max() < 1, "the mesh must follow the ridge"
    points = pd.DataFrame({"a": 1.0, "b": np.repeat(mesh["x"], y.shape[1]), "c": y.reshape(-1)})
    of_pairs = density.conditional_density(points[["a", "b"]], "b", given=["a"], n_points=256)
    of_pairs = of_pairs * density.conditional_density(points, "c")
    difference = np.abs(np.array(mesh["density"]) - of_pairs.reshape(y.shape))
    assert np.trapezoid(np.trapezoid(difference, y, axis=1), mesh["x"]) < 0.1


def test_marginal_given_conditions(density, table):
    """The density of one column given conditions is that of `conditional_density`, whose integrals use other points."""
    values = table[["size"]][:5]
    marginal = density.marginal(["size"], given={"weight": 0.5, "kind": "a"})
    exact = density.conditional_density(values, "size", given={"weight": 0.5, "kind": "a"}, n_points=2_048)
    np.testing.assert_allclose(np.exp(marginal.score_samples(values, n_points=2_048)), exact, rtol=0.05)
    assert "given={'weight': 0.5" in repr(marginal)
    with pytest.raises(ValueError, match="given must not have a condition on 'size'"):
        density.marginal(["size"], given={"size": 1.0})
    with pytest.raises(TypeError, match="given must be a dictionary"):
        density.marginal(["size"], given=["weight"])


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "content", "status", "words"),
    [
        ("/score", b"{", 400, "the body must be JSON"),
        ("/score", b'{"rows": [{"size": NaN}]}', 400, "the body must be JSON"),
        ("/score", b"[" * 100_000, 400, "the body must be JSON"),
        ("/score", {}, 422, "rows: field required"),
        ("/score", {"rows": 5}, 422, "rows: input should be a valid list"),
        ("/score", {"rows": [5]}, 422, r"rows\[0\] must be an object"),
        ("/score", {"rows": []}, 422, "rows must have at least one row"),
        ("/score", {"rows": [{}]}, 422, "rows must have values of 'size'"),
        ("/score", {"rows": [{"no": 1}]}, 422, r"rows\[0\] must have columns of .* got 'no'"),
        ("/score", {"rows": [{"size": [1]}]}, 422, r"rows\[0\]\['size'\] must be a number, text"),
        ("/score", {"rows": [{"size": 1}, {"size": "x"}]}, 422, "column 'size' must hold values of one type"),
        ("/score", {"rows": [{"size": None}], "path": "/etc/passwd"}, 422, "path: extra inputs are not permitted"),
        ("/score", {"rows": [{}] * 2_001}, 413, "rows must be at most 2,000 rows"),
        ("/score", b" " * (2**20 + 1), 413, "the body must have at most 1,048,576 bytes"),
        ("/sample", {"n": 0}, 422, "n: "),
        ("/sample", {"n": 10**9}, 413, "n must be at most 2,000 rows"),
        ("/sample", {"n": 1, "given": {"size": {"low": 2, "high": 1}}}, 422, "range of 'size' with low <= high"),
        ("/sample", {"n": 1, "given": {"size": None}}, 422, r"given\['size'\] must be a number"),
        ("/sample", {"n": 1, "given": {"size": 10**400}}, 422, r"given\['size'\] must be a number"),
        ("/sample", {"n": 1, "given": {"kind": "z"}}, 422, r"given\['kind'\] must be one of the 3 values"),
        ("/sample", {"n": 1, "given": {"flag": 1}}, 422, r"given\['flag'\] must be one of the 2 values"),
        ("/sample", {"n": 1, "given": {"day": "never"}}, 422, "day"),
        ("/sample", {"n": 1, "given": {"size": {"missing": True}}}, 422, "given must not ask for missing values"),
        ("/sample", {"n": 1, "context": [{}]}, 422, "context must be left out"),
        ("/sample", {"n": 1, "seed": -1}, 422, "seed: "),
        ("/explain", {"rows": [{}], "level": 2}, 422, "level: "),
        ("/explain", {"rows": [{}], "columns": []}, 422, "columns: "),
        ("/impute", {"rows": [{"size": 1}], "method": "guess"}, 422, "method: "),
        ("/conditional", {"column": "size", "rows": []}, 422, "quantiles, cdf or proba must"),
        ("/conditional", {"column": "size", "quantiles": [0.5]}, 422, "either rows or given"),
        ("/conditional", {"column": "no", "given": {}, "quantiles": [0.5]}, 422, "column must be one of"),
        (
            "/conditional",
            {"column": "size", "given": {}, "quantiles": [0.5, 0.25, 0.5]},
            422,
            "different, got 0.5 twice",
        ),
        (
            *("/conditional", {"column": "size", "rows": [{}] * 1_001, "quantiles": [0.25, 0.75]}),
            *(413, "rows x quantiles must be at most 2,000 rows, got 2,002"),
        ),
        ("/score", {"rows": [{"size": True}]}, 422, r"rows\[0\]\['size'\] must be a number, got true or false"),
        ("/score", {"rows": [{"count": 1}, {"count": False}]}, 422, r"rows\[1\]\['count'\] must be a number"),
        ("/density", {"columns": ["size", "size"]}, 422, "columns must be different"),
        ("/density", {"columns": ["size"], "given": {"size": 1}}, 422, "given must not have a condition on 'size'"),
    ],
)
def test_bad_requests_are_named(client, path, content, status, words):
    reply = client.post(path, content)
    assert reply.status == status, reply.body
    assert re.search(words, reply.detail), reply.detail
    assert "Traceback" not in reply.detail


def test_bad_media_types_and_tables(client, table):
    assert client.post("/score", b"{}", {"Content-Type": "text/plain"}).status == 415
    assert client.post("/score", b"{}", {"Accept": "text/html"}).status == 406
    assert client.post("/score", b"{}", {"Content-Encoding": "gzip"}).status == 415
    assert client.get("/score").status == 405
    assert client.get("/../../etc/passwd").status == 404
    arrow = {"Content-Type": STREAM_TYPE}
    body = to_body(table[:20])
    assert client.post("/score", b"ARROW1", arrow).status == 400
    assert client.post("/score", body[:100], arrow).status == 400
    assert client.post("/score", to_body(pd.DataFrame({"no": [1]})), arrow).status == 422
    assert client.post("/sample", body, arrow).status == 415
    sink = io.BytesIO()
    big = pa.table({"size": np.zeros(2_000)})
    with pa.ipc.new_stream(sink, big.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(big)
    assert "without compression" in client.post("/score", sink.getvalue(), arrow).detail
    nulls = pa.table({"size": pa.nulls(10**7)})  # a few bytes
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, nulls.schema) as writer:
        writer.write_table(nulls)
    assert client.post("/score", sink.getvalue(), arrow).status == 413
    rng = np.random.default_rng(0)
    for _ in range(60):  # changed bytes of a valid table
        damaged = bytearray(body)
        for position in rng.integers(0, len(body), 3):
            damaged[position] = rng.integers(0, 256)
        assert client.post("/score", bytes(damaged), arrow).status < 500


@pytest.mark.parametrize("offsets", [(0, 4, 8, 1_500_000_000), (0, 4, 1_500_000_000, 12), (0, 4, -8, 12)])
def test_offsets_outside_of_a_dictionary_are_refused(offsets):
    """Arrow reads them unchecked, and values at such offsets end the process."""
    words = pa.array([0, 1, 2], pa.int32()), pa.array(["aaaa", "bbbb", "cccc"])
    body = write_arrow(pa.table({"kind": pa.DictionaryArray.from_arrays(*words)}), STREAM_TYPE)
    before = struct.pack("<4i", 0, 4, 8, 12)
    assert body.count(before) == 1
    assert read_arrow(body, Limits())["kind"].to_pylist() == ["aaaa", "bbbb", "cccc"]
    with pytest.raises(Refusal, match=r"Arrow's IPC format, got: .*Dictionary array invalid"):
        read_arrow(body.replace(before, struct.pack("<4i", *offsets)), Limits())


def test_sizes_of_arrow_tables_count_shared_memory():
    words = pa.DictionaryArray.from_arrays(pa.array([0] * 500, pa.int32()), pa.array(["a" * 1_000, None]))
    body = write_arrow(pa.table({"kind": words}), STREAM_TYPE)
    assert read_arrow(body, Limits(bytes=500_000)).num_rows == 500
    with pytest.raises(Refusal, match="column 'kind' must have shorter values, or fewer rows"):
        read_arrow(body, Limits(bytes=499_999))
    table = pa.table({"size": np.zeros(1_000), "weight": np.ones(1_000)})
    body = write_arrow(table, STREAM_TYPE)
    # Positions and sizes of validity and values: the second column gets those of the first.
    first, second = struct.pack("<4q", 0, 0, 0, 8_000), struct.pack("<4q", 8_000, 0, 8_000, 8_000)
    assert body.count(second) == 1
    shared = read_arrow(body.replace(second, first), Limits())
    assert shared["weight"].to_pylist() == [0.0] * 1_000
    with pytest.raises(Refusal, match="the table must have at most 15,999 bytes, got 16,000"):
        read_arrow(body.replace(second, first), Limits(bytes=15_999))


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=5),
    st.sampled_from(["a", "2020-01-05", 0.5, 1, 10**400, -(10**20)]), st.lists(st.integers(), max_size=2),
)  # fmt: skip
NAMES = st.sampled_from(["size", "weight", "share", "count", "kind", "flag", "day", "no"])
CONDITIONS = st.one_of(
    VALUES,
    st.dictionaries(st.sampled_from(["low", "high", "missing", "x"]), VALUES, max_size=2),
    st.lists(VALUES, max_size=3),
)
FIELDS = {
    "rows": st.lists(st.dictionaries(NAMES, VALUES, max_size=7), max_size=3),
    "n": st.one_of(VALUES, st.integers(1, 3)),
    "given": st.one_of(st.dictionaries(NAMES, CONDITIONS, max_size=3), VALUES),
    "context": st.one_of(st.none(), st.lists(st.dictionaries(NAMES, VALUES), max_size=2)),
    "seed": st.one_of(VALUES, st.integers(0, 9)),
    "columns": st.one_of(VALUES, st.lists(NAMES, max_size=3)),
    "column": st.one_of(NAMES, VALUES),
    "quantiles": st.one_of(VALUES, st.lists(st.floats(0, 1), max_size=3)),
    "method": st.one_of(VALUES, st.sampled_from(["sample", "median", "mean", "mode"])),
    "precision": st.one_of(VALUES, st.just("quick")),
    "level": st.one_of(VALUES, st.floats(0, 1)),
}


def make_bodies(name):
    """Bodies with the fields that the description of the API has for a question, right and wrong values of them."""
    schema = QUESTIONS[name].extra["requestBody"]["content"]["application/json"]["schema"]
    fields = {field: FIELDS.get(field, VALUES) for field in schema["properties"]}
    required = {field: fields.pop(field) for field in schema.get("required", [])}
    if name == "density":
        required["precision"] = st.just("quick")  # fine pictures take longer
        fields.pop("precision")
    return st.fixed_dictionaries(required, optional=fields)


@pytest.mark.parametrize("name", list(QUESTIONS))
def test_no_input_breaks_the_service(client, name):
    @settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(make_bodies(name))
    def check(body):
        reply = client.post(f"/{name}", body)
        assert reply.status in (200, 413, 422), (reply.status, reply.body[:300])
        assert reply.json

    check()


# --- limits, secrets and the page -------------------------------------------------------------------------------------


def test_limits_of_time_and_number(density, table):
    rows = as_rows(table)
    with serving([ServedModel("all", density)], limits=Limits(seconds=0.05, requests=2)) as client:
        late = client.post("/explain", {"rows": rows})
        assert late.status == 503
        assert "at most 0.05 seconds" in late.detail
        assert late.headers["retry-after"] == "1"
        with ThreadPoolExecutor(12) as pool:
            statuses = list(pool.map(lambda _: client.post("/explain", {"rows": rows}).status, range(12)))
        assert set(statuses) <= {429, 503}
        assert 429 in statuses
        assert client.get("/healthz").json == {"status": "ok"}


class Checks(Deadline):
    """A deadline that comes at a certain number of looks at it, whatever the time."""

    def __init__(self, last):
        super().__init__(Limits())
        self.count, self.last = 0, last

    def check(self):
        self.count += 1
        if self.count > self.last:
            raise self.refuse()


def test_blocks_follow_from_the_number_of_points(density, given_size, table):
    """Few rows with many points are much work: there are as many looks at the deadline as for many rows."""
    holes = table[:3].drop(columns="weight")
    options = {"column": "size", "quantiles": [0.25, 0.75], "n_points": 16_384}
    request = ConditionalRequest(rows=[], **options)
    deadline = Checks(5)
    answer = answer_conditional(ServedModel("all", density), Limits(), holes, request, deadline).frame
    assert deadline.count == 2  # blocks of two rows
    others = [name for name in holes if name != "size"]
    expected = density.conditional_quantile(holes, "size", [0.25, 0.75], given=others, n_points=16_384)
    np.testing.assert_allclose(answer, expected, rtol=1e-9)
    with pytest.raises(Refusal, match="the answer must take at most 30 seconds"):
        answer_conditional(ServedModel("all", density), Limits(), holes, request, Checks(1))
    context = [{"size": value} for value in (0.0, 0.5, 1.0)]
    request = ConditionalRequest(given={}, context=context, **options | {"column": "weight"})
    deadline = Checks(5)
    answer = answer_conditional(ServedModel("weights", given_size), Limits(), None, request, deadline).frame
    assert deadline.count == 2
    frame = pd.DataFrame(context)
    expected = given_size.conditional_quantile(None, "weight", [0.25, 0.75], frame, {}, 16_384)
    np.testing.assert_allclose(answer, expected, rtol=1e-9)
    with pytest.raises(Refusal, match="the answer must take at most 30 seconds"):
        answer_conditional(ServedModel("weights", given_size), Limits(), None, request, Checks(1))


def test_no_rows_are_refused_in_a_batch_as_they_are_alone(density, table):
    items = [ScoreItem(as_rows(table[:2]), False), ScoreItem([], False), ScoreItem(as_rows(table[2:3]), False)]
    first, none, last = score_items(ServedModel("all", density), Limits(), items)
    assert isinstance(none, Refusal)
    assert none.reason == "rows must have at least one row, got none"
    scores = density.score_samples(table[:3]).tolist()
    assert [*first.frame["log_density"], *last.frame["log_density"]] == scores


def test_slow_headers_are_not_waited_for(density):
    class Impatient(HttpProtocol):
        header_seconds = 1.0

    with serving([ServedModel("all", density)], http=Impatient) as client:

        def open_socket(data=b""):
            opened = socket.create_connection(("127.0.0.1", client.port), timeout=10)
            opened.sendall(data)
            return opened

        health = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        after_one, long_body = open_socket(health + b"\r\n"), open_socket(health + b"Content-Length: 9999\r\n\r\n")
        for opened in (after_one, long_body):
            assert opened.recv(1_000).startswith(b"HTTP/1.1 200")
        after_one.sendall(health)
        score = (
            b"POST /score HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 12\r\n\r\n"
        )
        slow_body = open_socket(score + b"{")
        silent, begun = open_socket(), open_socket(health)
        start = time.monotonic()
        for opened in (silent, begun, after_one, long_body):
            with opened, suppress(BrokenPipeError, ConnectionResetError):
                opened.settimeout(0.05)
                while time.monotonic() < start + 10:  # a byte now and then does not help
                    if opened is not silent:
                        opened.sendall(b"x")
                    with suppress(TimeoutError):
                        found = opened.recv(1_000)
                        assert found.startswith(b"HTTP/1.1 408") or not found
                        break
        assert 0.9 < time.monotonic() - start < 8
        with slow_body:  # the time of a body is another one
            slow_body.sendall(b'"rows": []}')
            assert slow_body.recv(1_000).startswith(b"HTTP/1.1 422")


def test_faults_of_the_service_are_no_refusals(client, table, monkeypatch, caplog):
    def fail(*_, **__):
        return np.zeros(2) + np.zeros(3)  # a ValueError as well

    for method, path, content in [("score_samples", "/score", {}), ("explain", "/explain", {})]:
        with monkeypatch.context() as patch:
            patch.setattr(elflow.FlowDensity, method, fail)
            reply = client.post(path, {"rows": as_rows(table[:1]), **content})
        assert reply.status == 500
        assert reply.detail == "internal error; the log of the service has its cause"
        assert f"internal error in POST {path[1:]}" in caplog.text
        assert "could not be broadcast" in caplog.text  # the log has the cause
        caplog.clear()
    assert client.post("/score", {"rows": as_rows(table[:1])}).status == 200


@pytest.mark.filterwarnings("ignore::elflow.tabular.ExtrapolationWarning")
def test_values_that_other_libraries_do_not_take():
    """Such requests were refused only since every error was taken for one about arguments."""
    table = make_table()[["size", "count", "day"]]
    table = table.assign(count=table["count"].astype("Int64"), day=table["day"].dt.tz_localize("Europe/Berlin"))
    with serving([ServedModel("all", fit(table))]) as client:
        wide = write_arrow(pa.table({"count": pa.array([2**63], pa.uint64())}), STREAM_TYPE)
        reply = client.post("/impute", wide, {"Content-Type": STREAM_TYPE})
        assert (reply.status, reply.detail.partition(", as")[0]) == (422, "column 'count' must hold Int64")
        (row,) = client.post("/sample", {"n": 1, "given": {"day": "-5000-01-01"}}).json["rows"]
        assert row["day"].startswith("-5001-12-31T23:")


def test_requests_under_way_have_their_time_at_the_end():
    assert Settings().grace_seconds == 30
    assert Settings(limits=Limits(seconds=299.5)).grace_seconds == 300


def test_token_and_hosts(density):
    model = ServedModel("all", density)
    with serving([model], token="correct horse", hosts=["127.0.0.1"]) as client:
        assert client.get("/models").status == 401
        assert client.get("/models", Authorization="Bearer wrong").status == 401
        assert client.get("/models", Authorization="Bearer correct horse").status == 200
        assert client.get("/metrics").status == 401
        assert client.get("/").status == client.get("/healthz").status == client.get("/docs").status == 200
        assert client.get("/healthz", Host="evil.example:80").status == 421
    with pytest.raises(ValueError, match="token must have at least 8 characters"):
        Settings(token="short")
    assert Settings().allowed_hosts is not None
    assert Settings(host="0.0.0.0").allowed_hosts is None
    assert [Settings(host=host).is_loopback for host in ("localhost", "127.0.0.2", "::1")] == [True] * 3
    assert [Settings(host=host).is_loopback for host in ("0.0.0.0", "::", "10.0.0.1", "elflow.example")] == [False] * 4
    assert Settings().max_connections == 512
    assert Settings(limits=Limits(requests=200)).max_connections == 800


def test_the_page_needs_nothing_from_elsewhere(client):
    for path in ("/", "/docs", "/style.css", "/explore.js", "/chart.js", "/conditions.js", "/table.js", "/docs.js"):
        reply = client.get(path)
        assert reply.status == 200
        text = reply.body.decode().replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in text, path
        assert "https://" not in text, path
        assert "default-src 'none'" in reply.headers["content-security-policy"]
    described = client.get("/openapi.json").json
    assert client.get("/openapi.json").json == described
    assert set(described["paths"]) >= {f"/{name}" for name in QUESTIONS} | {"/model", "/healthz", "/metrics"}


def test_a_model_of_a_matrix():
    """Its columns have names only in the service."""
    matrix = np.random.default_rng(0).normal(size=(200, 2))
    density = fit(matrix)
    with serving([ServedModel("matrix", density)]) as client:
        rows = [{"x1": row[1], "x0": row[0]} for row in matrix[:3].tolist()]
        assert client.post("/score", {"rows": rows}).json["log_density"] == density.score_samples(matrix[:3]).tolist()
        (filled,) = client.post("/impute", {"rows": [{"x1": 0.5}], "seed": 0}).json["rows"]
        assert filled["x1"] == 0.5
        assert client.post("/density", {"columns": ["x0"], "given": {"x1": 1}, "precision": "quick"}).status == 200


def test_models_have_names(density, tmp_path):
    density.save(tmp_path / "a.elf")
    path = str(tmp_path / "a.elf")
    assert [model.name for model in load_models([path, f"b={path}"])] == ["a", "b"]
    with pytest.raises(ValueError, match="models must have different names, got 'a' twice"):
        load_models([path, path])
