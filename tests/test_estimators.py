"""The scikit-learn estimators, on dense and sparse rows."""

from __future__ import annotations

import signal
import warnings

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.base import clone
from sklearn.utils.estimator_checks import check_estimator

from gnomon import CompressedClassifier, CompressedRegressor, Trainer
from gnomon.data import CsrRecords, Loader
from gnomon.errors import DataError, SettingError
from gnomon.losses import logistic
from gnomon.models import SparseLinear
from gnomon.updates import gradients

CANNOT = {"check_pipeline_consistency": "two fits of a private model differ: their noise does"}
"""Checks of scikit-learn that a private estimator cannot pass."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "estimator", [CompressedClassifier(steps=10, sketch=None), CompressedRegressor(steps=10, sketch=None)]
)
def test_scikit_learn_s_own_checks_pass_as_far_as_privacy_allows(estimator):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(estimator, on_fail=None)
    failed = {one["check_name"]: str(one["exception"]) for one in results if one["status"] == "failed"}
    assert failed == {}
    random = {one["check_name"] for one in results if "non deterministic" in str(one["exception"])}
    assert random == set(CANNOT)
    assert sum(one["status"] == "passed" for one in results) >= 45


def blobs(n=300, size=30, classes=2, seed=0):
    rng = np.random.default_rng(seed)
    y = np.arange(n) % classes
    X = rng.standard_normal((n, size)) * (rng.random((n, size)) < 0.3)
    X[np.arange(n), y] += 3.0
    return X, np.array(["low", "mid", "high"])[y]


@pytest.mark.parametrize("loss", ["log", "hinge", "huber"])
@pytest.mark.parametrize("classes", [2, 3])
def test_labels_are_learnt_with_and_without_privacy(loss, classes):
    X, y = blobs(classes=classes)
    lr = 0.3 if loss == "huber" else 2.0
    free = CompressedClassifier("l1:8", loss=loss, epsilon=None, sketch=25, steps=40, lr=lr).fit(X, y)
    assert free.score(X, y) > 0.8
    assert free.epsilon_ == float("inf")
    private = CompressedClassifier("l1:8", loss=loss, epsilon=8.0, sketch=None, steps=20, lr=lr, random_state=0).fit(
        X, y
    )
    assert private.score(X, y) > 0.7
    assert private.epsilon_ <= 8.0
    assert private.statement_.adjacency == "zero-out"
    assert "seeded noise" in private.statement_.text()
    held = np.abs(private.coef_).sum() + np.abs(private.intercept_).sum()
    assert held <= 8.0 * (1 + 1e-9)


@pytest.mark.parametrize("form", ["clip-after-sketch", "linear-sketch"])
@pytest.mark.parametrize("classes", [2, 3])
def test_sparse_rows_give_what_dense_rows_give(form, classes):
    X, y = blobs(n=60, classes=classes)
    X[5] = 0.0
    settings = {"sketch": 10, "steps": 3, "epsilon": 2.0, "form": form, "random_state": 3}
    dense, thin = (CompressedClassifier("l2:5", **settings).fit(rows, y) for rows in (X, sparse.csr_array(X)))
    if classes == 2:  # with several outputs the sketch meets the weights in another order
        np.testing.assert_allclose(dense.coef_, thin.coef_, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(thin.decision_function(X), thin.decision_function(sparse.csr_array(X)))
    assert thin.coef_.shape == dense.coef_.shape


def test_gradients_of_sparse_rows_are_those_of_dense_ones():
    X, _ = blobs(n=20)
    y = torch.arange(20) % 2
    model = SparseLinear(30, 1).double()
    torch.nn.init.normal_(model.table.weight)
    inputs, targets = Loader(CsrRecords(sparse.csr_array(X), y, torch.float64)).take(torch.arange(20))
    updates = gradients(model, logistic, inputs, targets)
    x = torch.from_numpy(X)
    score = x @ model.table.weight.detach()
    expected = x * (score.sigmoid() - y[:, None])
    torch.testing.assert_close(updates.dense(), expected)
    torch.testing.assert_close(updates.norms(), expected.norm(dim=1))
    torch.testing.assert_close(model(*inputs).detach(), score)


def test_regression_is_learnt_and_probabilities_sum_to_one():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 10))
    model = CompressedRegressor("l1:3", epsilon=8.0, sketch=None, steps=20, lr=0.7, random_state=0).fit(
        X, X[:, 0] - X[:, 1]
    )
    assert model.score(X, X[:, 0] - X[:, 1]) > 0.7
    X, y = blobs(classes=3)
    chances = CompressedClassifier("l1:8", epsilon=None, steps=5).fit(X, y).predict_proba(X)
    np.testing.assert_allclose(chances.sum(1), 1.0)
    assert hasattr(CompressedClassifier(), "predict_proba")
    hinge = CompressedClassifier("l1:8", epsilon=None, loss="hinge", steps=2).fit(X, y)
    assert not hasattr(hinge, "predict_proba")
    with pytest.raises(AttributeError, match="predict_proba") as raised:
        hinge.predict_proba(X)
    assert "loss='log'" in str(raised.value.__cause__)


def test_the_statement_says_what_was_read_off_the_data():
    X, y = blobs(n=60)
    settings = {"sketch": None, "steps": 2}
    text = CompressedClassifier("l1:8", **settings).fit(X, y).statement_.text()
    assert "60 (counted: the number of records is public under zero-out adjacency)" in text
    assert "declared, not counted" not in text
    assert "The set of classes was read off the labels" in text
    assert "The number of records was read off the data" in text
    assert "a scaler in a pipeline" in text
    assert "classes" not in CompressedRegressor("l1:8", **settings).fit(X, X[:, 0]).statement_.text()


def test_ctrl_c_is_not_swallowed(monkeypatch):
    X, y = blobs(n=60)
    real, model = Trainer._charge, CompressedClassifier("l1:8", sketch=None, steps=20)

    def interrupted(trainer):
        signal.raise_signal(signal.SIGINT)
        real(trainer)

    monkeypatch.setattr(Trainer, "_charge", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, y)
    assert not hasattr(model, "coef_")


def test_batches_last_iterates_and_clones_work():
    X, y = blobs()
    model = CompressedClassifier(
        "l1:8", epsilon=4.0, batch_rate=0.5, form="linear-sketch", iterate="last", steps=2, random_state=1
    )
    assert "Poisson q = 0.5" in clone(model).fit(X, y).statement_.text()
    assert clone(model).get_params()["batch_rate"] == 0.5


@pytest.mark.parametrize(
    ("settings", "named"),
    [({"loss": "squares"}, "loss"), ({"form": "E"}, "form"), ({"iterate": "best"}, "iterate"),
     ({"epsilon": -1.0}, "epsilon"), ({"constraint": "l9:1"}, "constraint"), ({"batch_rate": 2.0}, "batch_rate"),
     ({"lr": float("nan")}, "lr"), ({"constraint": 5}, "constraint = 5 is invalid; expected l1:RADIUS")],
)  # fmt: skip
def test_bad_settings_are_refused_by_name(settings, named):
    X, y = blobs(n=20)
    with pytest.raises(SettingError, match=named):
        CompressedClassifier(**settings).fit(X, y)


def test_records_of_another_length_than_targets_are_refused():
    with pytest.raises(DataError, match="one target for each row"):
        CsrRecords(sparse.csr_array((3, 2)), torch.zeros(2))
    empty = CsrRecords(sparse.csr_array((3, 2)), torch.zeros(3))
    assert empty.take(torch.arange(3))[0][1].abs().sum() == 0
