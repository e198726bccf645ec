"""The settings of a run: from a YAML file, from flags, and back to YAML."""

from __future__ import annotations

import dataclasses
import difflib
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, Self, get_args, get_type_hints

import yaml

from gnomon.errors import SettingError
from gnomon.sampling import FLAGS

FAIR = "the fair rule needs a mean loss that was released with noise: use gnomon federate --method fedfdp"
"""Why no run on one machine has it."""


def setting(default: Any, text: str, choices: tuple[str, ...] = (), group: str = "training") -> Any:
    """A field with the help text that the command line shows."""
    return field(default=default, metadata={"help": text, "choices": choices, "group": group})


@dataclass(frozen=True)
class TrainConfig:
    """Everything that decides a training run. Each field is a flag and a YAML key of the same name.

    >>> TrainConfig.from_dict({"data": "digits", "target-epsilon": 0.5}).target_epsilon
    0.5
    >>> TrainConfig.from_dict({"target-epsilom": 0.5})
    Traceback (most recent call last):
    gnomon.errors.SettingError: setting = 'target-epsilom' is invalid; expected 'target-epsilon'
    """

    data: str = setting(
        "digits",
        "digits, mnist, fashion-mnist, cifar10, adult, compas, shakespeare, or npz:FILE with the arrays x_train, "
        "y_train, x_test, y_test, or inputs, targets, and classes if you declare their number",
        group="data",
    )
    data_dir: str | None = setting(
        None, "folder with the official files (default: GNOMON_DATA or ./data)", group="data"
    )
    private: int | None = setting(None, "how many private records to draw (default: all)", group="data")
    dataset_size: int | None = setting(
        None,
        "the declared, public number of records behind sample rate and epochs "
        "(default: that of the benchmark; needed for npz)",
        group="data",
    )
    model: str | None = setting(
        None, "cnn, cnn-small, lenet, mlp, resnet20, text, logistic, linear, or package.module:Class", group="data"
    )
    target_epsilon: float | None = setting(
        None,
        "the budget; noise is worked out for it (default: 1 without --noise-multiplier)",
        group="privacy",
    )
    noise_multiplier: float | None = setting(
        None, "noise in units of the clip bound, instead of or beside a target", group="privacy"
    )
    target_delta: float = setting(1e-5, "delta; keep it well below 1 / records", group="privacy")
    max_grad_norm: float = setting(1.0, "clip bound C", group="privacy")
    clip: str = setting("flat", "clip rule", ("flat", "automatic", "normalised", "psac", "per-layer"), group="privacy")
    sampler: str = setting(
        "poisson",
        "how batches are drawn; shuffled, full and fixed are accounted without amplification",
        tuple(FLAGS),
        group="privacy",
    )
    accountant: str = setting("pld", "privacy accountant", ("pld", "rdp", "rdp-classic"), group="privacy")
    adjacency: str | None = setting(
        None, "neighbouring data sets", ("add-remove", "zero-out", "replace-one"), group="privacy"
    )
    method: str = setting("dp-sgd", "training method; gnomon methods lists them", group="method")
    public: int | None = setting(
        None,
        "how many records to set aside as public, NOT protected, for methods and warm starts that use them "
        "(default: 100; say it yourself for npz)",
        group="method",
    )
    rank: float | None = setting(
        None, "dimensions of the subspace, or below 1 the share of energy (default: the method's)", group="method"
    )
    scope: str = setting(
        "global", "one public subspace for all parameters, or one per tensor", ("global", "per-tensor"), group="method"
    )
    every: int = setting(1, "steps between two bases of the subspace", group="method")
    start: int = setting(0, "first epoch that projects", group="method")
    public_batch: int | None = setting(None, "public records a basis uses (default: all)", group="method")
    public_blocks: int | None = setting(
        None, "cut the public records into so many blocks and use one after the other", group="method"
    )
    mask_rate: float = setting(0.3, "share of coordinates that rsdp leaves out", group="method")
    residual: float = setting(0.4, "clip bound of gep's residual, in units of C", group="method")
    pre_noise: float = setting(0.0, "noise on every sample before clipping", group="method")
    local_steps: int | None = setting(
        None,
        "steps each sample takes by itself before clipping, with any method (default: 10 for dp-lsgd)",
        group="method",
    )
    local_lr: float = setting(
        0.025, "step size of local steps; --lr is then the optimizer's, on their clipped sum", group="method"
    )
    local_momentum: float = setting(0.0, "momentum within the local steps of one sample", group="method")
    constraint: str | None = setting(
        None, "set that comp methods hold the weights to: l1:5, l2:1, simplex, box:-1,1, group:5,10, nuclear:5,10",
        group="method",
    )  # fmt: skip
    sketch: int | None = setting(None, "directions of the Gaussian sketch (default: 200)", group="method")
    form: str = setting(
        "clip-after-sketch",
        "where a private comp method sketches",
        ("clip-after-sketch", "per-sample-normaliser", "linear-sketch", "published-whole-batch-normaliser"),
        group="method",
    )
    iterate: str = setting("average", "which iterate comp methods give", ("average", "last"), group="method")
    warm_start: str = setting(
        "none", "start from the model that the public records alone give", ("none", "public"), group="method"
    )
    loss: str = setting("cross-entropy", "loss", ("cross-entropy", "hinge", "huber"))
    epochs: float = setting(30.0, "passes over the data, in expectation")
    batch_size: int = setting(256, "expected batch size; steps are divided by it")
    max_physical_batch_size: int | None = setting(None, "compute in parts of this size, to save memory")
    optimizer: str = setting("sgd", "optimizer", ("sgd", "adam", "adamw"))
    lr: float = setting(1.0, "learning rate")
    momentum: float = setting(0.0, "momentum of sgd")
    weight_decay: float = setting(0.0, "weight decay of the optimizer")
    schedule: str = setting("constant", "learning rate over the run", ("constant", "cosine", "inverse-sqrt"))
    evaluate_every: int = setting(1, "epochs between two looks at the test records; the last epoch always has one")
    ema_decay: float | None = setting(None, "keep a moving average of the weights, for example 0.99")
    seed: int = setting(0, "seed of the initial weights; noise and sampling are never seeded")
    split_seed: int = setting(0, "seed of the draw of private and public records", group="data")
    insecure_noise_seed: int | None = setting(
        None,
        "seed noise and sampling, for studies only: the statement then gives NO GUARANTEE",
        group="privacy",
    )
    device: str = setting("cpu", "cpu, cuda, cuda:1")
    threads: int | None = setting(None, "CPU threads (default: torch's choice)")

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The config with some settings given by name, with dashes or underscores."""
        known = {f.name for f in fields(cls)}
        given = {}
        for key, value in values.items():
            name = str(key).replace("-", "_")
            if name not in known:
                close = difflib.get_close_matches(name, known, 1)
                hint = repr(close[0].replace("_", "-")) if close else f"one of {', '.join(sorted(known))}"
                raise SettingError("setting", key, hint)
            given[name] = _typed(cls, name, value)
        return cls(**given)

    def with_settings(self, values: dict[str, Any]) -> Self:
        """This config with some settings replaced."""
        given = type(self).from_dict(values)
        names = {str(key).replace("-", "_") for key in values}
        return dataclasses.replace(self, **{name: getattr(given, name) for name in names})

    def to_yaml(self) -> str:
        """All settings, as a file that `--config` reads."""
        return yaml.safe_dump({f.name.replace("_", "-"): getattr(self, f.name) for f in fields(self)}, sort_keys=False)


IMAGES: dict[str, Any] = {"batch_size": 250, "epochs": 80.0, "max_grad_norm": 0.01, "lr": 5.0}
TEXT: dict[str, Any] = {"model": "text", "batch_size": 500, "epochs": 20.0, "lr": 10.0}
RECIPES: dict[str, dict[str, Any]] = {"mnist": IMAGES, "fashion-mnist": IMAGES, "cifar10": IMAGES, "shakespeare": TEXT}
"""Defaults that differ from the general ones for some data sets: for pictures batch and clip bound of the projection
papers, for text a model that reads symbols."""


SAMPLERS: dict[str, dict[str, Any]] = {
    "comp-sgd": {"sampler": "fixed", "batch_size": 1},
    "comp-minibatch": {"sampler": "fixed"},
    "comp-gd": {"sampler": "full"},
    "dp-comp-gd": {"sampler": "full"},
}
"""How the methods whose names say so draw their records."""


def recipe(data: str, method: str = "dp-sgd") -> TrainConfig:
    """The defaults for a data set and a method.

    >>> recipe("mnist").max_grad_norm, recipe("digits").max_grad_norm
    (0.01, 1.0)
    """
    return TrainConfig(data=data, **(RECIPES.get(data, {}) | SAMPLERS.get(method, {})))


def as_text(value: Any) -> str:
    """A value of a setting as short as it can be written without loss, for a flag.

    >>> as_text(5.0), as_text(1e-5), as_text(0.123456789), as_text("flat")
    ('5', '1e-05', '0.123456789', 'flat')
    """
    if not isinstance(value, float):
        return str(value)
    short = f"{value:.12g}"
    return short if float(short) == value else repr(value)


class _Unique(yaml.SafeLoader):
    """Plain values alone, and no key twice: the first of two would be lost without a word."""


def _mapping(loader: _Unique, node: yaml.MappingNode) -> dict[Any, Any]:
    keys = [loader.construct_object(key, deep=True) for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
    if twice := [key for number, key in enumerate(keys) if key in keys[:number]]:
        raise yaml.constructor.ConstructorError(None, None, f"{twice[0]!r} stands there twice", node.start_mark)
    return loader.construct_mapping(node, deep=True)


_Unique.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def read_yaml(path: Path) -> dict[str, Any]:
    """The settings in a YAML file; an error that names the file otherwise."""
    try:
        values = yaml.load(path.read_text(), _Unique)
    except FileNotFoundError:
        raise SettingError("config", str(path), "a YAML file that exists") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SettingError("config", str(path), f"a readable YAML file ({error})") from None
    if not isinstance(values, dict):
        raise SettingError("config", str(path), "a YAML file of 'setting: value' lines")
    return values


@cache
def _hints(cls: type) -> dict[str, Any]:
    """The types of all settings; working them out takes milliseconds."""
    return get_type_hints(cls)


def _typed(cls: type, name: str, value: Any) -> Any:
    """The value in the field's type; an error that names the setting otherwise."""
    hint = _hints(cls)[name]
    kinds = get_args(hint) or (hint,)
    choices = next(f for f in fields(cls) if f.name == name).metadata["choices"]
    if value is None and type(None) in kinds:
        return None
    if choices and value not in choices:
        more = f"; {FAIR}" if (name, value) == ("clip", "fair") else ""
        raise SettingError(name.replace("_", "-"), value, f"one of {', '.join(choices)}{more}")
    if float in kinds:
        try:
            return float(value)  # YAML reads 1e-5 as text
        except (TypeError, ValueError):
            raise SettingError(name.replace("_", "-"), value, "a number") from None
    if int in kinds and not (isinstance(value, int) and not isinstance(value, bool)):
        raise SettingError(name.replace("_", "-"), value, "a whole number")
    if str in kinds and not isinstance(value, str):
        raise SettingError(name.replace("_", "-"), value, "a text")
    return value
