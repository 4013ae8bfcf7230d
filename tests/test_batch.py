"""Scoring and sampling in batches: tables of every library, pieces of files, Dask, and Ray with a killed worker."""

import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from _command import fails, succeeds, table

import elflow
from elflow.batch import Imputer, Sampler, Scorer
from elflow.batch.pieces import Piece, PieceImputer, PieceSampler, PieceScorer, list_pieces, part_name


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("batch") / "model.elf"
    elflow.FlowDensity(max_steps=10, random_state=0, flow_options={"transforms": 2}).fit(table()).save(path)
    return path


@pytest.fixture(scope="module")
def conditional(tmp_path_factory):
    path = tmp_path_factory.mktemp("batch") / "conditional.elf"
    frame = table()
    density = elflow.FlowDensity(max_steps=10, random_state=0, flow_options={"transforms": 1})
    density.fit(frame[["size", "count"]], context=frame[["kind"]]).save(path)
    return path


@pytest.fixture(scope="module")
def expected(model):
    return elflow.load(model).score_samples(table())


KINDS = {
    "pandas": lambda frame: frame.set_axis(range(100, 100 + len(frame))),
    "pyarrow": lambda frame: pa.Table.from_pandas(frame, preserve_index=False),
    "record batch": lambda frame: pa.RecordBatch.from_pandas(frame, preserve_index=False),
    "polars": pl.from_pandas,
    "dictionary": lambda frame: {name: frame[name].to_numpy() for name in frame},
}


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_those_of_the_density_in_a_table_of_the_same_kind(model, expected, kind):
    batch = KINDS[kind](table())
    scores = pickle.loads(pickle.dumps(Scorer(model)))(batch)
    assert type(scores) is type(batch)
    assert np.array_equal(np.asarray(scores["log_density"]), expected)
    if kind == "pandas":
        assert scores.index.equals(batch.index)


def test_anomaly_scores_appended_to_the_batch(model, expected):
    result = Scorer(model, "anomaly", append=True)(table())
    assert result.columns.tolist() == [*table().columns, "log_density", "anomaly_score"]
    assert np.array_equal(result["anomaly_score"], elflow.load(model).percentiles(expected))
    pd.testing.assert_frame_equal(result[table().columns], table())
    with pytest.raises(ValueError, match="batch must not have a column 'log_density'"):
        Scorer(model, append=True)(result)


def test_explanations_number_the_rows_of_the_batch(model):
    frame = table()[:6].drop(columns="day")
    path = model.with_name("numbers.elf")
    elflow.FlowDensity(max_steps=5, random_state=0, flow_options={"transforms": 1}).fit(
        table()[["size", "count", "kind"]]
    ).save(path)
    scorer = Scorer(path, "explain", batch_rows=4)
    reasons = scorer(pa.Table.from_pandas(frame)).to_pandas()
    expected = elflow.load(path).explain(frame[["size", "count", "kind"]])
    assert sorted(zip(reasons["row"], reasons["column"], strict=True)) == sorted(
        zip(expected["row"], expected["column"], strict=True)
    )
    assert reasons.columns.tolist() == scorer.meta.columns.tolist()
    assert np.allclose(np.sort(reasons["surprise"]), np.sort(expected["surprise"]))
    with pytest.raises(ValueError, match="append must be False"):
        Scorer(path, "explain", append=True)


def test_scores_depend_on_neither_batch_rows_nor_threads(model, expected):
    scorer = Scorer(model, batch_rows=7, threads=2)
    before = torch.get_num_threads()
    assert np.array_equal(scorer(table())["log_density"], expected)
    assert torch.get_num_threads() == before
    assert [len(part) for part in scorer.map([table()[:0], table()[:5]])] == [0, 5]


def test_only_the_path_is_sent_to_workers(model):
    scorer = Scorer(model)
    scorer(table()[:5])
    assert len(pickle.dumps(scorer)) < 1000


def test_a_context_is_found_by_its_names(conditional):
    frame, density = table(), elflow.load(conditional)
    scores = Scorer(conditional)(frame[::-1])
    assert np.array_equal(scores["log_density"][::-1], density.score_samples(frame, context=frame[["kind"]]))
    drawn = Sampler(conditional, n=3)(pd.DataFrame({"kind": ["a", "b"], "block": 0}))
    assert drawn["kind"].tolist() == ["a"] * 3 + ["b"] * 3
    assert drawn.columns.tolist() == ["size", "count", "kind"]


def test_errors_name_the_argument(model, tmp_path):
    with pytest.raises(ValueError, match="output must be one of"):
        Scorer(model, "density")
    with pytest.raises(ValueError, match="threads must be"):
        Scorer(model, threads=0)
    with pytest.raises(TypeError, match="batch must be a table"):
        Scorer(model)(np.zeros((3, 5)))
    with pytest.raises(FileNotFoundError):
        Scorer(tmp_path / "none.elf")(table())
    with pytest.raises(ValueError, match="batch must have a column 'block'"):
        Sampler(model)(table())
    with pytest.raises(ValueError, match="block must hold numbers from 0 to 1, got 0 to 2"):
        Sampler(model, n=15, batch_rows=10)({"block": np.arange(3)})


def test_sampled_blocks_do_not_depend_on_their_order(model):
    sampler = Sampler(model, n=2500, seed=5, batch_rows=1000)
    together = sampler({"block": np.arange(3)})
    last, first = sampler({"block": np.array([2])}), sampler({"block": np.array([0])})
    assert len(together["size"]) == 2500
    assert np.array_equal(together["size"][:1000], first["size"])
    assert np.array_equal(together["size"][2000:], last["size"])
    assert len(np.unique(together["size"])) > 2400  # blocks differ
    plain = elflow.load(model).sample(20_000, random_state=0)["size"]
    assert np.log(together["size"]).mean() == pytest.approx(np.log(plain).mean(), abs=0.15)


def test_pieces_of_files_are_written_once_and_in_order(model, expected, tmp_path):
    frame = table()
    frame[:100].to_csv(tmp_path / "a.csv", index=False)
    frame[100:].to_parquet(tmp_path / "b.parquet", row_group_size=60)
    pieces = list_pieces([tmp_path / "a.csv", tmp_path / "b.parquet"], workers=1)
    assert [piece.row_groups for piece in pieces] == [None, (0,), (1,), (2,), (3,)]
    assert [Piece.from_json(piece.to_json()) for piece in pieces] == pieces
    worker = pickle.loads(pickle.dumps(PieceScorer(Scorer(model), str(tmp_path))))
    # In any order, and some of them twice, as after a failure.
    statistics = worker({"piece": [pieces[k].to_json() for k in (3, 1, 4, 0, 2, 3, 0)]})
    assert statistics["rows"].tolist() == [60, 60, 20, 100, 60, 60, 100]
    parts = sorted(tmp_path.glob("part-*"))
    assert [path.name for path in parts] == [part_name(k) for k in range(5)]
    assert np.array_equal(pd.concat(map(pd.read_parquet, parts))["log_density"], expected)


def with_holes():
    frame = table()
    frame.insert(0, "other", range(300))
    frame.loc[frame.index % 3 == 0, "size"] = np.nan
    frame.loc[frame.index % 5 == 0, "kind"] = None
    return frame


@pytest.mark.parametrize("kind", ["pandas", "pyarrow", "polars"])
def test_an_imputer_fills_holes_and_keeps_the_rest(model, kind):
    imputer = pickle.loads(pickle.dumps(Imputer(model, seed=3)))
    batch = KINDS[kind](with_holes())
    filled = imputer(batch)
    assert type(filled) is type(batch)
    assert filled.equals(imputer(batch))  # as after a failure
    frame = filled if kind == "pandas" else filled.to_pandas()
    assert not frame.isna().any(axis=None)
    holes = with_holes()
    known = holes["size"].notna().to_numpy()
    assert np.array_equal(frame["size"][known], holes["size"][known])
    assert frame["other"].tolist() == holes["other"].tolist()
    assert list(frame) == list(holes)
    other_seed = Imputer(model, seed=4)(with_holes())
    assert not np.array_equal(frame["size"][~known], other_seed["size"][~known])


def test_an_imputer_draws_several_times(model):
    filled = Imputer(model, n_draws=2)(with_holes())
    assert filled["draw"].tolist() == [0] * 300 + [1] * 300
    assert (filled["size"].to_numpy()[:300:3] != filled["size"].to_numpy()[300::3]).all()
    with pytest.raises(ValueError, match="n_draws must be 1 with method='median', got 2"):
        Imputer(model, "median", 2)
    with pytest.raises(ValueError, match="rows must not have a column 'draw'"):
        Imputer(model, n_draws=2)(with_holes().assign(draw=1))
    with pytest.raises(ValueError, match="got none named 'kind'"):
        Imputer(model)(with_holes().drop(columns="kind"))


def test_equal_blocks_have_other_draws(model, tmp_path):
    row = with_holes().iloc[[0]].drop(columns="other")
    filled = Imputer(model, batch_rows=2)(pd.concat([row] * 8))
    assert filled["size"].nunique() == 8
    pd.concat([row] * 8).to_parquet(tmp_path / "equal.parquet", row_group_size=2)
    worker = PieceImputer(Imputer(model, batch_rows=1), str(tmp_path))
    worker({"piece": [piece.to_json() for piece in list_pieces([tmp_path / "equal.parquet"])]})
    assert pd.concat(map(pd.read_parquet, tmp_path.glob("part-*")))["size"].nunique() == 8


def test_pieces_are_imputed(model, tmp_path):
    with_holes().to_parquet(tmp_path / "holes.parquet", row_group_size=100)
    pieces = list_pieces([tmp_path / "holes.parquet"])
    worker = PieceImputer(Imputer(model, "median"), str(tmp_path))
    counts = worker({"piece": [piece.to_json() for piece in pieces]})
    assert counts["rows"].tolist() == [100, 100, 100]
    assert counts["cells"].sum() == 100 + 60
    filled = pd.concat(map(pd.read_parquet, sorted(tmp_path.glob("part-*"))))
    assert filled["other"].tolist() == list(range(300))
    assert not filled.isna().any(axis=None)


def test_pieces_of_contexts_are_sampled(conditional, tmp_path):
    table()[["kind"]].to_parquet(tmp_path / "c.parquet", row_group_size=100)
    pieces = list_pieces([tmp_path / "c.parquet"])
    worker = PieceSampler(Sampler(conditional, n=2), str(tmp_path))
    assert worker({"piece": [piece.to_json() for piece in pieces]})["rows"].tolist() == [200, 200, 200]
    drawn = pd.concat(map(pd.read_parquet, sorted(tmp_path.glob("part-*"))))
    assert drawn["kind"].tolist() == table()["kind"].repeat(2).tolist()


@pytest.mark.slow
def test_dask(model, expected):
    import dask.dataframe as dd

    scorer = Scorer(model, "anomaly")
    scores = dd.from_pandas(table(), npartitions=3).map_partitions(scorer, meta=scorer.meta)
    assert np.array_equal(scores.compute(scheduler="threads")["log_density"], expected)


def test_errors_of_the_ray_engine(model, tmp_path):
    table().to_parquet(tmp_path / "data.parquet")
    assert "--output must be a folder" in fails("score", model, tmp_path / "data.parquet", "--engine", "ray")
    options = ["-o", tmp_path, "--engine", "ray"]
    assert "--output must be a new folder" in fails("score", model, tmp_path / "data.parquet", *options)
    data, options = tmp_path / "data.parquet", ["-o", tmp_path / "new", "--engine", "ray"]
    assert "--explain must be left out" in fails("score", model, data, "--explain", *options)
    assert "--given must be left out" in fails("sample", model, "--given", "count=1", *options)
    assert "--draws must be 1" in fails("impute", model, data, "--method", "mode", "--draws", "2", *options)
    (tmp_path / "empty").mkdir()
    assert "DATA must be an existing table" in fails(
        "score", model, tmp_path / "empty", "-o", tmp_path / "out", "--engine", "ray"
    )


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").exists(), reason="finds the workers in /proc")
def test_ray_survives_the_death_of_a_worker(model, tmp_path):
    """Two workers, one of which is killed while it scores: the rows are those of the plain command, each once."""
    data, out = tmp_path / "data.parquet", tmp_path / "out"
    pq.write_table(pa.Table.from_pandas(pd.concat([table()] * 100), preserve_index=False), data, row_group_size=2500)
    options = ["-o", str(out), "--engine", "ray", "--workers", "2", "--anomaly"]
    command = [sys.executable, "-m", "elflow", "score", str(model), str(data), *options]
    environment = os.environ | {"RAY_worker_niceness": "0"}  # by default workers have a low priority
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment) as process:
        while process.poll() is None and not list(tmp_path.glob(".out.*/part-*")):
            time.sleep(0.02)
        killed = find_workers(process.pid)[:1]
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        done = len(list(tmp_path.glob(".out.*/part-*")))
        _, error = process.communicate(timeout=300)
    assert process.returncode == 0, error
    assert killed
    assert done < 6  # the worker died before the end
    assert len(list(out.iterdir())) == 6
    succeeds("score", model, data, "-o", tmp_path / "plain.parquet", "--anomaly")
    pd.testing.assert_frame_equal(
        pd.concat(map(pd.read_parquet, sorted(out.iterdir())), ignore_index=True),
        pd.read_parquet(tmp_path / "plain.parquet"),
        check_exact=True,
    )


def find_workers(ancestor):
    """Processes of Ray that score, among the descendants of a process."""
    parents, names = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
            names[int(folder.name)] = (folder / "cmdline").read_text()
        except (OSError, ValueError):
            continue

    def descends(pid):
        return pid == ancestor or (pid in parents and descends(parents[pid]))

    return [pid for pid, name in names.items() if name.startswith("ray::") and "PieceScorer" in name and descends(pid)]
