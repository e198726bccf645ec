"""Settings of a training run: the dataclass, its YAML form, and the defaults of each data set and method."""

from __future__ import annotations

import dataclasses
import difflib
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, Self, get_args, get_type_hints

import yaml

from gnomon.errors import SettingError
from gnomon.runs.setting_names import FORMER_NAMES, current_name, dashed
from gnomon.sampling import FLAGS

FAIR = "the fair clip rule needs a mean loss that was released with noise: use gnomon federate --method fedfdp"
"""Why training on one machine does not offer the fair clip rule."""

PROJECTION = "projection onto a subspace"
LOCAL_STEPS = "local steps"
COMPRESSED = "compressed methods"
"""Groups of method-specific settings, as `--help` shows them."""

FEATURES = "recipes and feature maps"
"""Group of the settings of features."""

RECIPE_NAMES = ("best", "cold", "no-public")
"""Recipes; `gnomon recipes` describes them."""

PUBLIC_EIGENSPACE = ("pdp", "pcdp")
PROJECTED = ("pdp", "pcdp", "rpdp", "rpcdp")
COMP = ("comp-sgd", "comp-gd", "comp-minibatch", "dp-comp-gd", "dp-comp-minibatch")


def setting(
    default: Any, text: str, choices: tuple[str, ...] = (), group: str = "training", methods: tuple[str, ...] = ()
) -> Any:
    """Return a dataclass field that carries what the command line shows about the setting.

    Args:
        default: the default value.
        text: the help text.
        choices: the values that are allowed; empty if any value of the field's type is.
        group: the group of settings under which `--help` lists the flag.
        methods: the methods that use the setting; empty if all do.
    """
    return field(default=default, metadata={"help": text, "choices": choices, "group": group, "methods": methods})


@dataclass(frozen=True)
class Config:
    """Base class of the settings of a run: reads and writes dataclass fields as flags and YAML keys."""

    data: str = setting(
        "digits",
        "data set: digits, mnist, fashion-mnist, cifar10, adult, compas, shakespeare, or npz:FILE with the arrays "
        "x_train, y_train, x_test, y_test (or inputs, targets), classes to declare the number of classes, and "
        "x_public, y_public to declare public records, which are NOT protected",
        group="data",
    )

    @property
    def data_name(self) -> str:
        """The name of the data set, or of the file without folder and ending, as run folders and labels use it.

        >>> TrainConfig(data="npz:/data/patients.npz").data_name
        'patients'
        """
        return Path(self.data.removeprefix("npz:")).stem

    @classmethod
    def parse(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Return the fields that some settings give, by name.

        A name may have dashes or underscores, and former names are translated.

        Raises:
            SettingError: a name is unknown, or a value does not have the field's type.
        """
        known = {f.name for f in fields(cls)}
        given: dict[str, Any] = {}
        for key, value in values.items():
            name = current_name(str(key))
            if name not in known:
                raise _unknown_setting(str(key), known)
            given[name] = _typed(cls, name, value)
        return given

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Return the config with these settings, whose names are read as `parse` reads them."""
        return cls(**cls.parse(values))

    def with_settings(self, values: dict[str, Any]) -> Self:
        """Return this config with some settings replaced, whose names are read as `parse` reads them."""
        return dataclasses.replace(self, **self.parse(values))

    def to_yaml(self) -> str:
        """Return all settings as the text of a file that `--config` reads."""
        return yaml.safe_dump({dashed(f.name): getattr(self, f.name) for f in fields(self)}, sort_keys=False)


def _unknown_setting(key: str, known: set[str]) -> SettingError:
    near = difflib.get_close_matches(key.replace("-", "_"), known, 1)
    hint = f"did you mean {dashed(near[0])!r}?" if near else f"choose from {', '.join(map(dashed, sorted(known)))}"
    return SettingError.with_message(f"there is no setting {key!r}: {hint}", name=key)


@dataclass(frozen=True)
class TrainConfig(Config):
    """All settings of a training run. Each field is a flag and a YAML key of the same name.

    >>> TrainConfig.from_dict({"data": "digits", "target-epsilon": 0.5}).target_epsilon
    0.5
    >>> TrainConfig.from_dict({"target-epsilom": 0.5})
    Traceback (most recent call last):
    gnomon.errors.SettingError: there is no setting 'target-epsilom': did you mean 'target-epsilon'?
    """

    data_dir: str | None = setting(
        None, "folder with the official files (default: GNOMON_DATA or ./data)", group="data"
    )
    private_records: int | None = setting(
        None, "number of private records to draw from the data set (default: all)", group="data"
    )
    dataset_size: int | None = setting(
        None,
        "declared, public number of records, from which sample rate and epochs are computed "
        "(default: the size of the benchmark; required for npz files)",
        group="data",
    )
    model: str | None = setting(
        None,
        "model: cnn, cnn-small, lenet, mlp, resnet20, wrn-10-1, wrn-16-4, text, logistic, linear, or "
        "package.module:Class (default: chosen for the data set)",
        group="data",
    )
    recipe: str | None = setting(
        None,
        "choose features, model and every setting of training from the budget and public facts: best (public records "
        "where the data have some), cold (without a start from public records) or no-public",
        RECIPE_NAMES,
        group=FEATURES,
    )
    features: str | None = setting(
        None,
        "fixed feature map that takes the place of the inputs: scattering, patches, patches:N for N filters, random:N "
        "for N random Fourier features, ngrams:N for N positions, or scaled (default: none)",
        group=FEATURES,
    )
    distortion: str = setting(
        "none",
        "distortions of the copies of public images: strokes for handwriting, objects for grey images of objects, "
        "colour for photographs; with --recipe, none stands for the choice of the recipe",
        ("none", "strokes", "objects", "colour"),
        group=FEATURES,
    )
    public_copies: int = setting(
        1, "number of distorted copies of each public image, the image itself included", group=FEATURES
    )
    whitening_directions: int | None = setting(
        None, "whiten features by the first N principal directions of the public features (default: no whitening)",
        group=FEATURES,
    )  # fmt: skip
    whitening_lam: float = setting(
        0.1, "regularisation of the whitening, relative to the largest eigenvalue", group=FEATURES
    )
    known_space: str = setting(
        "none",
        "space in which updates are known to lie; noise outside of it is removed after each release: softmax-head for "
        "models that end in a linear layer and are trained with the cross-entropy",
        ("none", "softmax-head"),
        group=FEATURES,
    )
    feature_cache: str | None = setting(
        None, "folder that keeps computed features, which are as private as the records (default: none)",
        group=FEATURES,
    )  # fmt: skip
    target_epsilon: float | None = setting(
        None,
        "epsilon to spend; the noise multiplier is calibrated to it (default: 1 without --noise-multiplier)",
        group="privacy",
    )
    noise_multiplier: float | None = setting(
        None, "standard deviation of the noise divided by the clip bound, instead of a target epsilon or beside it",
        group="privacy",
    )  # fmt: skip
    target_delta: float = setting(1e-5, "delta; keep it well below 1 / number of records", group="privacy")
    max_grad_norm: float = setting(1.0, "clip bound C", group="privacy")
    clip: str = setting("flat", "clip rule", ("flat", "automatic", "normalised", "psac", "per-layer"), group="privacy")
    sampler: str = setting(
        "poisson",
        "sampling scheme of the batches; shuffled, full and fixed are accounted without amplification",
        tuple(FLAGS),
        group="privacy",
    )
    accountant: str = setting("pld", "accounting method", ("pld", "rdp", "rdp-classic"), group="privacy")
    adjacency: str | None = setting(
        None, "definition of neighbouring data sets (default: the one that fits the sampling scheme)",
        ("add-remove", "zero-out", "replace-one"), group="privacy",
    )  # fmt: skip
    method: str = setting("dp-sgd", "training method; gnomon methods lists them", group="method")
    public_records: int | None = setting(
        None,
        "number of public records, NOT protected, for methods and warm starts that use them: drawn from a benchmark "
        "(default: 100), or the first ones of x_public in an npz file (default: all)",
        group="data",
    )
    rank: float | None = setting(
        None, "dimensions of the subspace, or below 1 the share of energy that it keeps (default: the method's)",
        group=PROJECTION, methods=(*PROJECTED, "gep"),
    )  # fmt: skip
    subspace_scope: str = setting(
        "global", "one subspace for all parameters, or one per tensor", ("global", "per-tensor"),
        group=PROJECTION, methods=PROJECTED,
    )  # fmt: skip
    refresh_basis_every: int = setting(
        1, "steps between two computations of the basis", group=PROJECTION, methods=(*PUBLIC_EIGENSPACE, "gep")
    )
    project_from_epoch: int = setting(0, "first epoch in which gradients are projected", group=PROJECTION,
                                      methods=PROJECTED)  # fmt: skip
    public_batch: int | None = setting(
        None, "number of public records from which a basis is computed (default: all)",
        group=PROJECTION, methods=(*PUBLIC_EIGENSPACE, "gep"),
    )  # fmt: skip
    public_blocks: int | None = setting(
        None, "split the public records into this many blocks and use one after the other", group=PROJECTION,
        methods=PUBLIC_EIGENSPACE,
    )  # fmt: skip
    mask_rate: float = setting(
        0.3, "share of the coordinates that the random mask leaves out", group="random mask", methods=("rsdp",)
    )
    residual_bound: float = setting(
        0.4, "clip bound of the residual, as a multiple of C", group=PROJECTION, methods=("gep",)
    )
    pre_noise: float = setting(
        0.0, "standard deviation of noise added to every sample's update before clipping", group="privacy",
        methods=("dp-sgd", *PROJECTED, "rsdp", "dp-lsgd"),
    )  # fmt: skip
    local_steps: int | None = setting(
        None, "local steps of each sample before clipping, with any method (default: 10 for dp-lsgd, none otherwise)",
        group=LOCAL_STEPS, methods=("dp-lsgd",),
    )  # fmt: skip
    local_lr: float = setting(
        0.025, "learning rate of the local steps; --lr then applies to their clipped sum", group=LOCAL_STEPS,
        methods=("dp-lsgd",),
    )  # fmt: skip
    local_momentum: float = setting(
        0.0, "momentum within the local steps of one sample", group=LOCAL_STEPS, methods=("dp-lsgd",)
    )
    views: int | None = setting(
        None,
        "random views of each record in a step, whose mean gradient is clipped once, with any method that takes no "
        "local steps (default: 1 with an augmentation); a physical batch computes this many rows for each record",
    )
    augmentation: str = setting("none", "random change of the images that makes their views", ("none", "crop-and-flip"))
    constraint: str | None = setting(
        None, "set to which the weights are constrained: l1:5, l2:1, simplex, box:-1,1, group:5,10, nuclear:5,10",
        group=COMPRESSED, methods=COMP,
    )  # fmt: skip
    sketch_dimension: int | None = setting(
        None, "number of directions of the Gaussian sketch (default: 200)", group=COMPRESSED, methods=COMP
    )
    sketch_form: str = setting(
        "clip-after-sketch",
        "where a private method sketches",
        ("clip-after-sketch", "per-sample-normaliser", "linear-sketch", "published-whole-batch-normaliser"),
        group=COMPRESSED,
        methods=("dp-comp-gd", "dp-comp-minibatch"),
    )
    returned_iterate: str = setting(
        "average", "iterate that becomes the final model", ("average", "last"), group=COMPRESSED, methods=COMP
    )
    warm_start: str = setting(
        "none", "start from freshly drawn weights, or from a model trained on the public records", ("none", "public"),
    )  # fmt: skip
    public_weight_decay: float = setting(1e-3, "weight decay of the training on public records alone")
    loss: str = setting("cross-entropy", "loss function", ("cross-entropy", "hinge", "huber"))
    epochs: float = setting(30.0, "passes over the data, in expectation")
    batch_size: int = setting(256, "expected batch size, by which every noisy sum is divided")
    max_physical_batch_size: int | None = setting(
        None, "largest number of samples computed at once, to limit memory; does not change the result"
    )
    optimizer: str = setting("sgd", "optimizer", ("sgd", "adam", "adamw"))
    lr: float = setting(1.0, "learning rate")
    momentum: float = setting(0.0, "momentum of sgd")
    weight_decay: float = setting(0.0, "weight decay of the optimizer")
    lr_schedule: str = setting("constant", "learning rate schedule", ("constant", "cosine", "inverse-sqrt"))
    evaluate_every: int = setting(
        1, "epochs between two evaluations on the test records; the last epoch is always evaluated", group="run"
    )
    ema_decay: float | None = setting(None, "keep an exponential moving average of the weights, for example 0.99")
    ema_schedule: str = setting(
        "constant", "decay of the moving average: constant, or rising from 0.18 after the first step to --ema-decay",
        ("constant", "warm-up"),
    )  # fmt: skip
    seed: int = setting(0, "seed of the initial weights; noise and sampling are never seeded by it", group="run")
    split_seed: int = setting(0, "seed of the draw of private and public records", group="data")
    insecure_noise_seed: int | None = setting(
        None,
        "seed of noise and sampling, for studies only: the statement then gives NO GUARANTEE",
        group="privacy",
    )
    device: str = setting("cpu", "cpu, cuda, cuda:1", group="run")
    threads: int | None = setting(None, "number of CPU threads (default: PyTorch's choice)", group="run")


IMAGES: dict[str, Any] = {"batch_size": 250, "epochs": 80.0, "max_grad_norm": 0.01, "lr": 5.0}
TEXT: dict[str, Any] = {"model": "text", "batch_size": 500, "epochs": 20.0, "lr": 10.0}
DATA_DEFAULTS: dict[str, dict[str, Any]] = {
    "mnist": IMAGES,
    "fashion-mnist": IMAGES,
    "cifar10": IMAGES,
    "shakespeare": TEXT,
}
"""Defaults of data sets where they differ from the general ones: batch size and clip bound of the projection papers
for images, a model that reads symbols for text."""

METHOD_DEFAULTS: dict[str, dict[str, Any]] = {
    "comp-sgd": {"sampler": "fixed", "batch_size": 1},
    "comp-minibatch": {"sampler": "fixed"},
    "comp-gd": {"sampler": "full"},
    "dp-comp-gd": {"sampler": "full"},
}
"""Defaults of methods whose definition fixes the sampling scheme."""


def default_settings(data: str, method: str = "dp-sgd") -> TrainConfig:
    """Return the default settings of a data set and a method.

    >>> default_settings("mnist").max_grad_norm, default_settings("digits").max_grad_norm
    (0.01, 1.0)
    """
    return TrainConfig(data=data, **(DATA_DEFAULTS.get(data, {}) | METHOD_DEFAULTS.get(method, {})))


def as_text(value: Any) -> str:
    """Return the shortest text of a setting's value that reads back as the same value.

    >>> as_text(5.0), as_text(1e-5), as_text(0.123456789), as_text("flat")
    ('5', '1e-05', '0.123456789', 'flat')
    """
    if not isinstance(value, float):
        return str(value)
    short = f"{value:.12g}"
    return short if float(short) == value else repr(value)


class _UniqueKeyLoader(yaml.SafeLoader):
    """YAML loader that reads plain values only and rejects a key that occurs twice in a mapping.

    PyYAML itself keeps the last of two equal keys without a warning.
    """


def _unique_mapping(loader: _UniqueKeyLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    keys = [loader.construct_object(key, deep=True) for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
    keys = [dashed(FORMER_NAMES[key]) if isinstance(key, str) and key in FORMER_NAMES else key for key in keys]
    if repeated := [key for number, key in enumerate(keys) if key in keys[:number]]:
        raise yaml.constructor.ConstructorError(None, None, f"the key {repeated[0]!r} occurs twice", node.start_mark)
    return loader.construct_mapping(node, deep=True)


_UniqueKeyLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _unique_mapping)


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file.

    Raises:
        SettingError: the file is missing, not readable, or holds something else than a mapping without repeated keys.
    """
    try:
        values = yaml.load(path.read_text(), _UniqueKeyLoader)
    except FileNotFoundError:
        raise SettingError("config", str(path), "a YAML file that exists") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SettingError("config", str(path), f"a readable YAML file ({error})") from None
    if not isinstance(values, dict):
        raise SettingError("config", str(path), "a YAML file of 'setting: value' lines")
    return values


@cache
def _type_hints(cls: type) -> dict[str, Any]:
    """Return the types of all settings; cached, because resolving them takes milliseconds."""
    return get_type_hints(cls)


def _typed(cls: type, name: str, value: Any) -> Any:
    """Return a value converted to the type of its field; raise SettingError if that is not possible."""
    hint = _type_hints(cls)[name]
    kinds = get_args(hint) or (hint,)
    choices = next(f for f in fields(cls) if f.name == name).metadata["choices"]
    if value is None and type(None) in kinds:
        return None
    if choices and value not in choices:
        remark = f"; {FAIR}" if (name, value) == ("clip", "fair") else ""
        raise SettingError(dashed(name), value, f"one of {', '.join(choices)}{remark}")
    if float in kinds:
        try:
            return float(value)  # YAML reads 1e-5 as a string
        except (TypeError, ValueError):
            raise SettingError(dashed(name), value, "a number") from None
    if int in kinds and not (isinstance(value, int) and not isinstance(value, bool)):
        raise SettingError(dashed(name), value, "a whole number")
    if str in kinds and not isinstance(value, str):
        raise SettingError(dashed(name), value, "a string")
    return value
