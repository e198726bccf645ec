"""Runs with recipes and feature maps: settings, repetition, resuming, own data and the saved model."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from gnomon import DataError, SettingError
from gnomon.data import load, public_private
from gnomon.runs.builders.preparation import OWN_SETTINGS, plain_dp_sgd, prepare
from gnomon.runs.config import TrainConfig, read_yaml
from gnomon.runs.predictor import load_predictor
from gnomon.runs.train import train
from gnomon.training.evaluate import evaluate

SEEDED = TrainConfig(recipe="best", features="scaled", target_epsilon=1.0, insecure_noise_seed=0)
"""A run whose features are quick to compute."""


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A file of a user's own records, with public ones."""
    digits = load("digits")
    split = public_private(digits.train, private=1000, public=100)
    path = tmp_path_factory.mktemp("own") / "own.npz"
    arrays = {"x_train": split.private.inputs, "y_train": split.private.targets, "x_test": digits.test.inputs,
              "y_test": digits.test.targets, "x_public": split.public.inputs, "y_public": split.public.targets,
              "classes": np.array(10)}  # fmt: skip
    np.savez(path, **{name: np.asarray(values) for name, values in arrays.items()})
    return path


def changed(path, tmp_path, **arrays):
    """Write the file with some arrays replaced, or left out if None, and return the new path."""
    with np.load(path) as stored:
        values = {name: stored[name] for name in stored.files} | arrays
    np.savez(tmp_path / "changed.npz", **{name: array for name, array in values.items() if array is not None})
    return f"npz:{tmp_path / 'changed.npz'}"


def test_config_yaml_repeats_a_recipe_without_the_recipe(tmp_path):
    first = train(SEEDED, tmp_path / "first", progress=False)
    stored = TrainConfig.from_dict(read_yaml(tmp_path / "first" / "config.yaml"))
    assert stored.recipe is None
    assert stored.features == "scaled"
    assert stored.whitening_directions == first.trainer.model[-1].in_features
    train(stored, tmp_path / "again", progress=False)
    weights, again = (load_file(tmp_path / name / "model.safetensors") for name in ("first", "again"))
    assert all(torch.equal(weights[name], again[name]) for name in weights)


def test_the_settings_of_a_recipe_read_no_private_record(own, tmp_path):
    plan = prepare(
        TrainConfig(data=f"npz:{own}", dataset_size=1000, recipe="best", features="scaled"), progress=False
    ).config
    with np.load(own) as stored:
        other = np.random.default_rng(0).normal(size=stored["x_train"][:700].shape).astype("float32")
    data = changed(own, tmp_path, x_train=other, y_train=np.arange(700) % 10)
    again = prepare(TrainConfig(data=data, dataset_size=1000, recipe="best", features="scaled"), progress=False).config
    assert dataclasses.replace(again, data=plan.data) == plan


def test_own_data_without_public_records_train_without_them(own, tmp_path):
    data = changed(own, tmp_path, x_public=None, y_public=None)
    prepared = prepare(TrainConfig(data=data, dataset_size=1000, recipe="best", features="scaled"), progress=False)
    assert prepared.plan is not None
    assert prepared.feature_map.origin.kind == "none"
    assert not len(prepared.split.public)
    assert prepared.config.warm_start == "none"
    with pytest.raises(SettingError, match="no public records"):
        prepare(TrainConfig(data=data, dataset_size=1000, recipe="cold"), progress=False)


def test_public_records_of_own_data_start_the_training(own):
    prepared = prepare(
        TrainConfig(data=f"npz:{own}", dataset_size=1000, recipe="best", features="scaled"), progress=False
    )
    assert prepared.plan.choice.start
    assert len(prepared.split.public) == 2000  # twenty copies of each
    assert prepared.split.public.raw is not None


@pytest.mark.parametrize("name", ["lr", "epochs", "batch_size", "max_grad_norm", "momentum", "whitening_directions"])
def test_settings_that_a_recipe_chooses_are_refused_by_name(name):
    value = {"batch_size": 100, "epochs": 3.0, "whitening_directions": 5}.get(name, 0.25)
    assert name in OWN_SETTINGS
    with pytest.raises(SettingError, match=name.replace("_", "-")):
        prepare(TrainConfig(recipe="best", **{name: value}), progress=False)


def test_settings_of_features_without_features_are_refused():
    with pytest.raises(SettingError, match="no effect without a feature map"):
        prepare(TrainConfig(whitening_directions=5), progress=False)


def test_a_feature_map_works_with_any_method(tmp_path):
    config = TrainConfig(
        features="scaled", whitening_directions=20, method="pcdp", rank=10, epochs=1.0, insecure_noise_seed=0
    )
    run = train(config, tmp_path / "run", progress=False)
    assert run.trainer.model[-1].in_features == 20
    assert "whitening by 20 public directions" in (tmp_path / "run" / "statement.txt").read_text()


def test_the_model_of_a_run_is_loaded_from_its_folder_alone(own, tmp_path):
    moved = tmp_path / "moved.npz"
    moved.write_bytes(own.read_bytes())
    config = dataclasses.replace(SEEDED, data=f"npz:{moved}", dataset_size=1000)
    run = train(config, tmp_path / "run", progress=False)
    moved.unlink()  # neither the private nor the public records are needed any more
    predictor = load_predictor(run.folder)
    test = load("digits").test
    scores = evaluate(predictor, run.trainer.loss, test)
    assert scores["accuracy"] == pytest.approx(run.result.history[-1]["validation/accuracy"], abs=0.006)
    assert load_predictor(
        train(TrainConfig(epochs=1.0, insecure_noise_seed=0), tmp_path / "plain", progress=False).folder
    )


def test_a_run_folder_without_its_model_is_named(tmp_path):
    (tmp_path / "config.yaml").write_text("data: digits\n")
    with pytest.raises(DataError, match=r"model\.json is missing"):
        load_predictor(tmp_path)


@pytest.mark.parametrize(
    "settings",
    [{}, {"private_records": 900, "split_seed": 3}, {"public_records": 300}],
    ids=["default", "split", "public"],
)
def test_plain_dp_sgd_protects_the_same_records(settings):
    config = TrainConfig(recipe="best", features="scaled", **settings)
    recipe = prepare(config, progress=False)
    plain = prepare(plain_dp_sgd(config, recipe.plan.budget.records), progress=False)
    assert torch.equal(plain.split.private.inputs, recipe.split.private.raw.inputs)


def test_an_epsilon_of_zero_is_refused_and_not_taken_for_the_default(tmp_path):
    with pytest.raises(SettingError, match="target_epsilon"):
        train(dataclasses.replace(SEEDED, target_epsilon=0.0), tmp_path / "run", progress=False)


def test_a_distortion_of_rows_is_refused(own, tmp_path):
    with np.load(own) as stored:
        rows = {name: stored[name].reshape(len(stored[name]), -1) for name in ("x_train", "x_test", "x_public")}
    data = changed(own, tmp_path, **rows)
    config = TrainConfig(data=data, dataset_size=1000, recipe="best", distortion="strokes")
    with pytest.raises(SettingError, match="are no images"):
        prepare(config, progress=False)


def test_a_run_keeps_its_feature_map_where_eigenvectors_come_out_with_other_signs(tmp_path, monkeypatch):
    run = train(SEEDED, tmp_path / "run", progress=False)
    real = torch.linalg.eigh

    def other(matrix):  # another library: other signs, and other directions where eigenvalues are close
        values, vectors = real(matrix + 1e-9 * torch.diag(torch.arange(len(matrix)) % 3).to(matrix.dtype))
        return values, vectors * torch.where(torch.arange(len(values)) % 2 == 0, -1.0, 1.0).to(vectors.dtype)

    monkeypatch.setattr(torch.linalg, "eigh", other)
    monkeypatch.setattr("gnomon.features.whitening.with_signs", lambda vectors: vectors)
    test = load("digits").test
    accuracy = evaluate(load_predictor(run.folder), run.trainer.loss, test)["accuracy"]
    assert accuracy == pytest.approx(run.result.history[-1]["validation/accuracy"], abs=0.006)
    (run.folder / "feature-map.safetensors").unlink()
    with pytest.raises(DataError, match="feature-map"):
        load_predictor(run.folder)


@pytest.mark.parametrize(
    ("arrays", "problem"),
    [
        ({"x_public": np.ones((100, 1, 8, 8), "float32")}, "the same for every record"),
        ({"x_public": np.ones((100, 1, 9, 9), "float32")}, "shape"),
        ({"y_public": np.zeros(100, int)}, "one class"),
    ],
)
def test_public_records_that_do_not_fit_stop_the_run_before_it_costs_anything(own, tmp_path, arrays, problem):
    data = changed(own, tmp_path, **arrays)
    with pytest.raises(DataError, match=problem):
        train(
            TrainConfig(data=data, dataset_size=1000, recipe="best", features="scaled"),
            tmp_path / "run",
            progress=False,
        )
    assert not (tmp_path / "run").exists()
