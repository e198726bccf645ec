"""A model named "package.module:Class" is imported and called, and what goes wrong is explained."""

import numpy as np
import pytest
import torch

from gnomon.cli.main import main
from gnomon.errors import SettingError
from gnomon.models import build

MODULE = """
from torch import nn

class Plain(nn.Linear):
    def __init__(self):
        super().__init__(4, 3)

class Sized(nn.Linear):
    def __init__(self, *, classes, input_shape):
        super().__init__(input_shape[0], classes)

def classes_only(classes, bias=False):
    return nn.Linear(4, classes, bias=bias)

def anything(**settings):
    return nn.Linear(settings["input_shape"][0], settings["classes"])

def needy(depth):
    return nn.Linear(depth, 2)

def broken(input_shape):
    raise KeyError("width")

def double():
    return nn.Linear(4, 2).double()

def narrow():
    return nn.Linear(3, 2)

def no_model():
    return "a string"

number = 3
"""


@pytest.fixture(autouse=True)
def own_module(tmp_path, monkeypatch):
    (tmp_path / "my_models_for_test.py").write_text(MODULE)
    (tmp_path / "my_broken_for_test.py").write_text("import a_module_nobody_has")
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.parametrize("maker", ["Plain", "Sized", "classes_only", "anything"])
def test_own_models_get_the_settings_their_signature_takes(maker):
    model = build(f"my_models_for_test:{maker}", (4,), 3, seed=1)
    again = build(f"my_models_for_test:{maker}", (4,), 3, seed=1)
    assert model(torch.zeros(2, 4)).shape == (2, 3)
    assert torch.equal(model.weight, again.weight)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my_models_for_test:", "package.module:Class"),
        (":Plain", "package.module:Class"),
        ("no_such_module:Plain", "No module named 'no_such_module'.*PYTHONPATH"),
        ("my_broken_for_test:Plain", "a_module_nobody_has"),
        ("my_models_for_test:Missing", "my_models_for_test defines; it has no 'Missing'"),
        ("my_models_for_test:number", "a class or a function, not int"),
        ("my_models_for_test:needy", "it requires depth"),
        ("my_models_for_test:broken", r"my_models_for_test:broken\(input_shape=\(4,\)\) raised KeyError: 'width'"),
        ("my_models_for_test:no_model", "torch.nn.Module, not str"),
    ],
)
def test_a_name_that_gives_no_model_is_explained(name, message):
    with pytest.raises(SettingError, match=message):
        build(name, (4,), 3)


@pytest.mark.parametrize(
    ("maker", "words"),
    [
        (
            "narrow",
            [
                "Linear cannot process inputs of shape (batch, 4), float32",
                "cannot be multiplied",
                "use a model for inputs",
            ],
        ),
        ("double", ["Linear cannot process inputs of shape (batch, 4), float32", "float64; use model.float()"]),
        ("broken", ["my_models_for_test:broken", "KeyError: 'width'"]),
    ],
)
@pytest.mark.parametrize("more", [[], ["--warm-start", "public"]], ids=["", "warm"])
def test_a_model_that_does_not_fit_is_explained_without_a_traceback(maker, words, more, tmp_path, capsys):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(130, 4)), rng.integers(0, 2, 130)
    np.savez(tmp_path / "own.npz", inputs=x[:100], targets=y[:100], x_public=x[100:], y_public=y[100:], classes=2)
    data = ["--data", str(tmp_path / "own.npz"), "--dataset-size", "50", "--batch-size", "10", *more]
    model = ["--model", f"my_models_for_test:{maker}", "--out", str(tmp_path / "run"), "--quiet"]
    assert main(["train", *data, *model]) == 2
    said = capsys.readouterr().err
    assert all(word in said for word in words), said
    assert not (tmp_path / "run").exists()
    with pytest.raises(ValueError, match="model") as caught:
        main(["--debug", "train", *data, *model])
    assert caught.value.__cause__ is not None
