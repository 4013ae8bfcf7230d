"""Model files of `FlowClassifier`, `FlowRegressor` and `FlowImputer`."""

import copy
import json
import os

import numpy as np
import pandas as pd
import pytest
from _command import fails, succeeds
from sklearn.exceptions import NotFittedError

import elflow
from elflow import FlowClassifier, FlowDensity, FlowImputer, FlowRegressor, _model_file
from elflow.activations import QELU
from elflow.batch import Scorer
from elflow.serialization import read_notes, read_training
from elflow.verification import verify
from experiments.faults.files import read_content, write_content

SMALL = {"transforms": 1, "units": 4, "hidden_features": (8,)}


def small(**parameters):
    return FlowDensity(**{"flow_options": SMALL, "max_steps": 2, "members": ["cholesky", "gaussian"]} | parameters)


def make_table(rows=120):
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {"size": rng.lognormal(size=rows), "kind": rng.choice(["p", "q"], rows), "count": rng.poisson(3, rows)}
    )


@pytest.fixture(scope="module")
def table():
    return make_table()


@pytest.fixture(scope="module")
def holes(table):
    return table.mask(np.random.default_rng(1).random(table.shape) < 0.1)


@pytest.fixture(scope="module")
def classifier(table):
    density = small(columns={"size": (0, None)})
    y = np.where(table["size"] > 1, "yes", "no")
    return FlowClassifier(density, priors=np.array([0.3, 0.7]), odd_share=0.2, random_state=np.int64(3)).fit(table, y)


@pytest.fixture(scope="module")
def regressor(table):
    return FlowRegressor(small(), random_state=0).fit(table, np.log(table["size"]))


@pytest.fixture(scope="module")
def imputer(holes):
    return FlowImputer(small(), method="sample", random_state=0).fit(holes)


@pytest.fixture(params=["classifier", "regressor", "imputer"])
def estimator(request):
    return request.getfixturevalue(request.param)


def round_trip(estimator, folder):
    estimator.save(folder / "model.elf")
    return elflow.load(folder / "model.elf")


def answer(estimator, table, holes):
    """Answers of an estimator, by the names of its methods."""
    if isinstance(estimator, FlowImputer):
        return {"transform": estimator.transform(holes), "names": estimator.get_feature_names_out()}
    if isinstance(estimator, FlowRegressor):
        return {
            "predict": estimator.predict(table[:5]),
            "quantiles": estimator.predict_quantiles(table[:5], [0.1, 0.9]),
            "sample": estimator.sample(table, n=3, random_state=0),
            "log_density": estimator.log_density(table, np.zeros(len(table))),
        }
    methods = ["predict", "predict_proba", "decision_function", "score_samples", "anomaly_score", "is_odd"]
    return {name: getattr(estimator, name)(table) for name in methods}


def as_content(value):
    """A parameter without the difference of tuples, lists and arrays, which JSON does not have."""
    if isinstance(value, dict):
        return {str(key): as_content(part) for key, part in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [as_content(part) for part in value]
    return as_content(value.get_params()) if isinstance(value, FlowDensity) else value


def test_answers_and_parameters_come_back(estimator, table, holes, tmp_path):
    same = round_trip(estimator, tmp_path)
    assert type(same) is type(estimator)
    assert as_content(same.get_params()) == as_content(estimator.get_params())
    assert same.n_features_in_ == 3
    assert same.feature_names_in_.tolist() == ["size", "kind", "count"]
    assert same.feature_names_in_.dtype == estimator.feature_names_in_.dtype
    found = answer(same, table, holes)
    for name, expected in answer(estimator, table, holes).items():
        if isinstance(expected, pd.DataFrame):
            pd.testing.assert_frame_equal(found[name], expected, check_exact=True)
        else:
            assert found[name].dtype == expected.dtype
            assert np.array_equal(found[name], expected), name
    assert vars(same).keys() == vars(estimator).keys()
    assert as_content(same.config) == as_content(estimator.config)


def test_functions_save_and_load_with_notes(estimator, tmp_path):
    path = tmp_path / "model.elf"
    elflow.save(estimator, path, notes={"source": "cars"})
    assert type(elflow.load(path)) is type(estimator)
    assert read_notes(path) == {"source": "cars"}
    assert read_training(path) == estimator.density_.training_
    assert verify(path).n_scores == 8
    assert os.listdir(tmp_path) == ["model.elf"]


@pytest.mark.parametrize(
    "classes",
    [
        np.array(["no", "yes"]),
        np.array(["no", "yes"], "U9"),
        np.array(["", "\ud800 \0é\n</script>"], object),
        np.array([-(2**63), 2**63 - 1]),
        np.array([0, 2**64 - 1], np.uint64),
        np.array([-7, 7], np.int8),
        np.array([1, 2], ">i4"),
        np.array([False, True]),
        np.array([-0.0, 3.0]),
        np.array([1.0, 2.0**100], np.float32),
        np.array([-1.0, 65504.0], np.float16),
    ],
    ids=lambda classes: classes.dtype.str,
)
def test_classes_of_all_kinds_come_back(classifier, classes, tmp_path):
    classifier = copy.copy(classifier)
    classifier.classes_ = classes
    same = round_trip(classifier, tmp_path).classes_
    assert same.dtype == classes.dtype
    assert same.tolist() == classes.tolist()
    assert [type(label) for label in same] == [type(label) for label in classes]


@pytest.mark.slow
@pytest.mark.parametrize(
    "y", [["no", "yes", "no"], [3, 1, 2], [True, False, True], [1.0, 2.0, 1.0], [5, 5, 5]], ids=str
)
@pytest.mark.parametrize("container", [np.array, pd.Series, pd.Categorical])
def test_a_fit_to_classes_of_any_kind_comes_back(y, container, tmp_path):
    X = np.random.default_rng(0).normal(size=(60, 2))
    classifier = FlowClassifier(small(max_steps=1), random_state=0).fit(X, container(y * 20))
    same = round_trip(classifier, tmp_path)
    assert same.predict(X).dtype == classifier.predict(X).dtype
    assert (same.predict(X) == classifier.predict(X)).all()
    assert (same.predict_proba(X) == classifier.predict_proba(X)).all()
    assert not hasattr(same, "feature_names_in_")
    assert same.n_features_in_ == 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:column 'id' is left out")
@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
def test_names_come_back_in_the_order_of_the_fitted_table(tmp_path):
    """The columns of a matrix are those of the fitted table, by position; identifiers are among them."""
    table = make_table()[["size", "count"]]
    table.insert(0, "id", [f"row {i}" for i in range(len(table))])
    imputer = FlowImputer(small(), random_state=0).fit(table)
    same = round_trip(imputer, tmp_path)
    assert same.feature_names_in_.tolist() == ["id", "size", "count"]
    assert same.get_feature_names_out(["id", "size", "count"]).tolist() == ["size", "count"]
    numbers = table[["count", "size"]]
    regressor = FlowRegressor(small(), random_state=0).fit(numbers, table["size"])
    same = round_trip(regressor, tmp_path)
    assert (same.sample(numbers.to_numpy(), random_state=0) == regressor.sample(numbers, random_state=0)).all()


def test_defaults_and_generators(imputer, tmp_path):
    imputer = copy.copy(imputer).set_params(density=None, random_state=np.random.RandomState(0))
    same = round_trip(imputer, tmp_path)
    assert same.density is None
    assert same.random_state is None


def test_activations_of_the_unfitted_density_come_back(classifier, tmp_path):
    density = small(flow_options=SMALL | {"activation": QELU})
    same = round_trip(copy.copy(classifier).set_params(density=density), tmp_path)
    assert same.density.flow_options["activation"] == QELU


def test_a_loaded_estimator_can_be_fitted_again(classifier, table, tmp_path):
    y = np.where(table["size"] > 1, "yes", "no")
    again = round_trip(classifier, tmp_path).fit(table, y)
    assert (again.predict_proba(table) == classifier.predict_proba(table)).all()


def test_declared_columns_may_have_any_label(tmp_path):
    """Labels that are tuples were no keys of JSON objects."""
    table = make_table()[["size", "count"]]
    table.columns = pd.MultiIndex.from_tuples([("a", "size"), ("a", "count")])
    density = small(columns={("a", "size"): (0, None)}, random_state=0).fit(table)
    same = round_trip(density, tmp_path)
    assert (same.score_samples(table) == density.score_samples(table)).all()
    assert same.columns == {"('a', 'size')": [0, None]}


# --- what is not saved ------------------------------------------------------------------------------------------------


def test_what_cannot_be_saved(classifier, tmp_path):
    path = tmp_path / "model.elf"
    path.write_bytes(b"old")
    with pytest.raises(NotFittedError):
        elflow.save(FlowClassifier(), path)
    with pytest.raises(NotFittedError):
        elflow.save(FlowDensity(), path)

    class Stricter(FlowClassifier):
        pass

    other = copy.copy(classifier)
    other.__class__ = Stricter
    with pytest.raises(TypeError, match="Stricter must be a class of elflow to be saved, got a subclass"):
        other.save(path)
    other = copy.copy(classifier).set_params(odd_share=2)
    with pytest.raises(ValueError, match=r"config\.estimator\.odd_share must be in \(0, 1\), got 2"):
        other.save(path)
    other = copy.copy(classifier)
    other.classes_ = np.array(["2020", "2021"], "M8[D]")
    with pytest.raises(TypeError, match=r"classes_ must be strings, .* to be saved, got datetime64\[D\]"):
        other.save(path)
    with pytest.raises(TypeError, match="configuration and notes of a model must be JSON"):
        classifier.save(path, notes={"a": object()})
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["model.elf"]


def test_the_old_file_survives_a_failure(estimator, tmp_path, monkeypatch):
    path = tmp_path / "model.elf"
    estimator.save(path)
    before = path.read_bytes()

    def interrupt(tensors, file, metadata):
        file.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(_model_file, "save_file", interrupt)
    with pytest.raises(KeyboardInterrupt):
        estimator.save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["model.elf"]


# --- damaged and hostile files ----------------------------------------------------------------------------------------


def change(path, entry, value):
    """Write another value into the configuration of a model file, with a valid digest."""
    header, tensors = read_content(path)
    config = json.loads(header["config"])
    parent = config
    for key in entry[:-1]:
        parent = parent[key]
    if value is ...:
        del parent[entry[-1]]
    else:
        parent[entry[-1]] = value
    write_content(path, header | {"config": json.dumps(config)}, tensors)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("entry", "value", "message"),
    [
        ((), ..., r"config\.estimator must be an object, got null"),
        ((), [1], r"config\.estimator must be an object"),
        (("surprise",), 1, r"config\.estimator has an entry surprise, which ClassifierState does not have"),
        (("odd_share",), ..., r"config\.estimator has no entry odd_share"),
        (("odd_share",), "0.1", r"config\.estimator\.odd_share must be a number"),
        (("odd_share",), 1.0, r"config\.estimator\.odd_share must be in \(0, 1\), got 1\.0"),
        (("random_state",), 0.5, r"config\.estimator\.random_state must be an integer or null"),
        (("priors",), [0.5, "x"], r"config\.estimator\.priors\[1\] must be a number"),
        (("feature_names",), ["size", "kind"], r"config\.estimator\.feature_names must be the columns of the density"),
        (("feature_names",), ["size", "kind", "kind"], r"config\.estimator\.feature_names must be the columns"),
        (("feature_names",), [1, 2, 3], r"config\.estimator\.feature_names\[0\] must be a string"),
        (("density",), "FlowDensity", r"config\.estimator\.density must be an object or null"),
        (("density", "surprise"), 1, r"config\.estimator\.density\.surprise must be left out"),
        (("density", "max_steps"), "2", r"config\.estimator\.density\.max_steps must be an integer"),
        (("density", "missing"), "never", r"config\.estimator\.density\.missing must be one of"),
        (("density", "members"), ["forest"], r"config\.estimator\.density\.members must be None or a list"),
        (("density", "log_dir"), "/etc", r"config\.estimator\.density\.log_dir must be null, got '/etc'"),
        (("density", "flow"), "os.system", "flow must be one of"),
        (("density", "flow_options", "units"), "4", r"config\.estimator\.density\.flow_options\.units must be an int"),
        (("classes",), "no", r"config\.estimator\.classes must be a list"),
        (("classes",), [], r"config\.estimator\.classes must be 1 to 32, got 0"),
        (("classes",), ["no"], r"config\.estimator\.classes must be as many as the classes of config\.context_schema"),
        (("classes",), ["a"] * 10**5, r"config\.estimator\.classes must be 1 to 32, got 100000"),
        (("classes",), ["no", 1], r"config\.estimator\.classes\[1\] must be a string, got 1"),
        (("classes",), ["no", {"a": 1}], r"config\.estimator\.classes\[1\] must be a string"),
        (("classes",), ["yes", "no"], r"config\.estimator\.classes must be different values .* in increasing order"),
        (("classes",), ["no", "no"], r"config\.estimator\.classes must be different values"),
        (("classes",), ["no", "too long for it"], r"config\.estimator\.classes must be different values of dtype <U3"),
        (("classes_dtype",), "<i8", r"config\.estimator\.classes\[0\] must be an integer"),
        (("classes_dtype",), "|b1", r"config\.estimator\.classes\[0\] must be true or false"),
        (
            ("classes_dtype",),
            "<U999999999",
            r"config\.estimator\.classes_dtype must be one of strings, .*'<U999999999'",
        ),
        (("classes_dtype",), "<M8[s]", r"config\.estimator\.classes_dtype must be one of"),
        (("classes_dtype",), "i4,(9999999)f8", r"config\.estimator\.classes_dtype must be one of"),
        (("class_prior",), [0.5], r"config\.estimator\.class_prior must be 2 probabilities that add up to 1"),
        (("class_prior",), [0.5, 0.6], r"config\.estimator\.class_prior must be 2 probabilities"),
        (("class_prior",), [-1.0, 2.0], r"config\.estimator\.class_prior must be 2 probabilities"),
        (("class_prior",), [float("inf"), 0.0], r"config\.estimator\.class_prior must be 2 probabilities"),
        (("class_prior",), [float("nan"), 1.0], r"config\.estimator\.class_prior\[0\] must be a number"),
        (("reference_scores",), [], r"config\.estimator\.reference_scores must be finite and increasing"),
        (("reference_scores",), [2.0, 1.0], r"config\.estimator\.reference_scores must be finite and increasing"),
        (("reference_scores",), [0.0, float("inf")], r"config\.estimator\.reference_scores must be finite"),
    ],
)
def test_wrong_entries_are_named(classifier, tmp_path, entry, value, message):
    path = tmp_path / "odd name.elf"
    classifier.save(path)
    change(path, ("estimator", *entry), value)
    with pytest.raises(ValueError, match=rf"got .*odd name\.elf, .*{message}"):
        elflow.load(path)


@pytest.mark.parametrize("dtype", ["|i1", "<f2"])
def test_classes_beyond_their_dtype_are_refused(classifier, tmp_path, dtype):
    path = tmp_path / "model.elf"
    classifier.save(path)
    change(path, ("estimator", "classes_dtype"), dtype)
    change(path, ("estimator", "classes"), [0, 10**6])
    with pytest.raises(ValueError, match=r"config\.estimator\.classes must be"):
        elflow.load(path)


def test_wrong_entries_of_an_imputer_are_named(imputer, tmp_path):
    path = tmp_path / "model.elf"
    imputer.save(path)
    change(path, ("estimator", "method"), "os.system")
    with pytest.raises(ValueError, match=r"model\.elf, .*config\.estimator\.method must be one of"):
        elflow.load(path)


@pytest.mark.parametrize(
    ("kind", "saved", "message"),
    [
        ("FlowClassifier", "regressor", "has an entry|has no entry|must have one column"),
        ("FlowRegressor", "classifier", r"config\.schema must be that of the numbers y|has an entry"),
        ("FlowDensity", "classifier", "config has an entry estimator, which Config does not have"),
        ("ELF", "classifier", "must be left out"),
        ("os.system", "classifier", "model must be one of"),
    ],
)
def test_a_file_with_the_name_of_another_class(kind, saved, message, request, tmp_path):
    path = tmp_path / "model.elf"
    request.getfixturevalue(saved).save(path)
    header, tensors = read_content(path)
    write_content(path, header | {"flow": kind}, tensors)
    with pytest.raises(ValueError, match=message):
        elflow.load(path)


@pytest.mark.parametrize(
    ("saved", "other", "message"),
    [
        ("classifier", "imputer", r"config\.context_schema must have one column of categories 'class' for a FlowCla"),
        ("classifier", "regressor", r"config\.context_schema must have one column of categories 'class'"),
        ("regressor", "classifier", r"config\.schema must be that of the numbers y"),
        ("imputer", "classifier", r"config\.context_schema must be null for a FlowImputer"),
    ],
)
def test_the_density_of_another_estimator_is_refused(saved, other, message, request, tmp_path):
    """Such a file would load, and fail in the first prediction."""
    path, source = tmp_path / "model.elf", request.getfixturevalue(saved)
    request.getfixturevalue(other).save(path)
    header, tensors = read_content(path)
    config = json.loads(header["config"]) | {"estimator": json.loads(json.dumps(source.config["estimator"]))}
    write_content(path, header | {"flow": type(source).__name__, "config": json.dumps(config)}, tensors)
    with pytest.raises(ValueError, match=message):
        elflow.load(path)


def test_a_flipped_bit_is_refused(classifier, tmp_path):
    path = tmp_path / "model.elf"
    classifier.save(path)
    data = path.read_bytes()
    for word in (b"odd_share", b"classes_dtype", b"class_prior", b"feature_names"):
        position = data.index(word) + len(word) + 4
        path.write_bytes(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
        with pytest.raises(ValueError, match="path must be a"):
            elflow.load(path)


# --- the command line -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_info_and_verify_on_the_command_line(estimator, tmp_path):
    path = tmp_path / "model.elf"
    estimator.save(path)
    name = type(estimator).__name__
    assert name in succeeds("info", path)[0]
    facts = json.loads(succeeds("info", path, "--json")[0])
    assert facts["estimator"]["class"] == name
    assert facts["rows"] == 120
    assert "8 as stored" in succeeds("verify", path)[0]


def test_info_shows_classes_and_method(classifier, imputer, tmp_path):
    classifier.save(tmp_path / "model.elf")
    assert "30.0% no, 70.0% yes" in succeeds("info", tmp_path / "model.elf")[0]
    facts = json.loads(succeeds("info", tmp_path / "model.elf", "--json")[0])["estimator"]
    assert facts == {"class": "FlowClassifier", "classes": ["no", "yes"], "priors": [0.3, 0.7], "odd_share": 0.2}
    imputer.save(tmp_path / "model.elf")
    assert "sample" in succeeds("info", tmp_path / "model.elf")[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["classifier", "regressor"])
def test_commands_that_need_a_density_say_so(name, request, table, tmp_path):
    path, data = tmp_path / "model.elf", tmp_path / "data.csv"
    estimator = request.getfixturevalue(name)
    estimator.save(path)
    table.to_csv(data, index=False)
    kind = type(estimator).__name__
    for command in (
        ["score", path, data],
        ["sample", path, "-o", tmp_path / "new.csv"],
        ["impute", path, data, "-o", tmp_path / "full.csv"],
        ["drift", path, data],
        ["report", path, data],
    ):
        assert f"MODEL must be a model written by `elflow fit`, got {path}, a {kind}: load it in" in fails(*command)
    assert f"MODEL must be densities of tables, got {path}, a {kind}" in fails("serve", path)
    assert f"got {path}, a model of a table" in fails("score-images", path, data)
    with pytest.raises(TypeError, match=f"path must be a density of a table, got .*, a {kind}"):
        Scorer(path)(table)


def test_commands_take_the_density_of_an_imputer(imputer, table, holes, tmp_path):
    path, data = tmp_path / "model.elf", tmp_path / "data.csv"
    imputer.save(path)
    holes.to_csv(data, index=False)
    succeeds("impute", path, data, "-o", tmp_path / "full.csv")
    assert not pd.read_csv(tmp_path / "full.csv").isna().any().any()
    expected = imputer.density_.score_samples(table)
    assert Scorer(path)(table).iloc[:, 0].to_numpy() == pytest.approx(expected)
