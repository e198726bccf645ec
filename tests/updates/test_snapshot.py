"""What a model or a loss keeps of the records it saw is refused before it is released, and put back."""

from __future__ import annotations

import array
import collections
import dataclasses
import functools
import itertools
import random
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gnomon
from gnomon.ledger import Ledger
from gnomon.training import NotPrivate
from gnomon.training.checkpoint import save_checkpoint
from gnomon.updates import snapshot, state_values
from gnomon.updates.snapshot import DEPTH, Snapshot, untouched
from gnomon.updates.state_values import LONG, SMALL
from tests import helpers
from tests.helpers import LOSS

LARGE = SMALL + 4


def data(*shape: int, n: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(n, *shape), torch.arange(n) % 2


def build(model: nn.Module, loss=None, steps: int = 6, **settings) -> gnomon.Trainer:
    return helpers.trainer(
        model, seed=None, lr=0.1, loss=loss or LOSS, sample_rate=1.0, expected_batch_size=16, steps=steps, **settings
    )


@dataclasses.dataclass
class Statistics:
    total: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    totals: list


class Opaque:
    """Counts calls where nobody can see it, so that a model starts to write only when it is called often enough."""

    def __init__(self) -> None:
        self.calls = itertools.count()

    def __call__(self) -> int:
        return next(self.calls)


def plain_tensor(module, x):
    module.kept = 0.9 * module.kept + 0.1 * x.mean(0).detach()


def tensor_in_place(module, x):
    module.kept.mul_(0.9).add_(x.mean(0).detach())


def silently(module, x):
    module.kept.data[: x.shape[1]] = x.mean(0).detach()


def through_numpy(module, x):
    module.kept.numpy()[: x.shape[1]] = x.mean(0).numpy()


def numpy_in_place(module, x):
    module.kept[: x.shape[1]] += x.mean(0).numpy()


def number(module, x):
    module.kept = 0.9 * module.kept + float(x.mean())


def whole_number(module, x):
    module.kept += int((x > 0).sum())


def text(module, x):
    module.kept = f"{float(x.mean())}"


def appended(module, x):
    module.kept.append(x.mean(0).detach())


def rotated(module, x):
    module.kept.append(float(x.mean()))


def by_key(module, x):
    module.kept["mean"] = float(x.mean())


def added(module, x):
    module.kept.add(float(x.mean()))


def nested(module, x):
    module.kept["a"][0][1].append(float(x.mean()))


def in_a_dataclass(module, x):
    module.kept[0].total += float(x.mean())


def in_slots(module, x):
    module.kept.totals[0] += float(x.mean())


def in_an_object(module, x):
    module.kept.inner.value = float(x.mean())


def of_bytes(module, x):
    module.kept[0] = int((x > 0).sum()) % 200 + 1


def in_an_array_of_objects(module, x):
    module.kept[0] = [float(x.mean())]


def of_a_function(module, x):
    module.kept(x)


def accumulator():
    total = [0.0]

    def add(x):
        total[0] += float(x.mean())

    return add


def on_a_tensor(module, x):
    module.kept.mean = float(x.mean())


def is_the_mode(module, x):
    module.training = not module.training


HOLES = {
    "plain tensor": (lambda: torch.zeros(4), plain_tensor, "layer.kept"),
    "tensor in place": (lambda: torch.zeros(4), tensor_in_place, "layer.kept"),
    "small tensor through .data": (lambda: torch.zeros(4), silently, "layer.kept"),
    "large tensor through .data": (lambda: torch.zeros(LARGE), silently, "layer.kept"),
    "large tensor through NumPy": (lambda: torch.zeros(LARGE), through_numpy, "layer.kept"),
    "array": (lambda: np.zeros(4, np.float32), numpy_in_place, "layer.kept"),
    "large array": (lambda: np.zeros(LARGE, np.float32), numpy_in_place, "layer.kept"),
    "number": (lambda: 0.0, number, "layer.kept"),
    "whole number": (lambda: 0, whole_number, "layer.kept"),
    "text": (lambda: "", text, "layer.kept"),
    "list": (list, appended, "layer.kept"),
    "deque": (lambda: collections.deque([0.0] * 3, maxlen=3), rotated, r"layer.kept\[...\]"),
    "long deque": (lambda: collections.deque([0.0] * 2 * LONG, maxlen=2 * LONG), rotated, r"layer.kept\[...\]"),
    "dict": (lambda: {"mean": 0.0}, by_key, r"layer.kept\[...\]"),
    "new key": (dict, by_key, "layer.kept"),
    "set": (set, added, "layer.kept"),
    "nested": (lambda: {"a": ([0, []],)}, nested, r"layer.kept\[...\]"),
    "dataclass in a list": (lambda: [Statistics()], in_a_dataclass, r"layer.kept\[...\].total"),
    "slots": (lambda: Slotted([0.0]), in_slots, r"layer.kept.totals\[...\]"),
    "object": (lambda: SimpleNamespace(inner=SimpleNamespace(value=0.0)), in_an_object, "layer.kept.inner.value"),
    "bytes": (lambda: bytearray(3), of_bytes, r"layer.kept\[...\]"),
    "array of bytes": (lambda: array.array("B", [0]), of_bytes, r"layer.kept\[...\]"),
    "closure of a function": (accumulator, of_a_function, r"layer.kept.total\[...\]"),
    "attribute of a tensor": (lambda: torch.zeros(4), on_a_tensor, "layer.kept"),
    "training mode": (lambda: 0, is_the_mode, "layer.training"),
}


class Keeping(nn.Module):
    def __init__(self, kept, write, start: int = 0) -> None:
        super().__init__()
        self.kept, self.write, self.start, self.calls = kept, write, start, Opaque()

    def forward(self, x):
        if self.calls.calls.__next__() >= self.start:
            self.write(self, x)
        return x


class Model(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.out = layer, nn.Linear(4, 2)

    def forward(self, x):
        return self.out(self.layer(x))


def picture(kept) -> str:
    if isinstance(kept, torch.Tensor):
        return f"{kept.tolist()}{vars(kept)}"
    return str(kept.__closure__[0].cell_contents) if callable(kept) else repr(kept)


@pytest.mark.parametrize("hole", HOLES)
def test_state_read_off_records_is_refused_before_the_first_step_and_put_back(hole):
    make, write, name = HOLES[hole]
    kept = make()
    before = picture(kept)
    model = Model(Keeping(kept, write))
    trainer = build(model)
    with pytest.raises(NotPrivate, match=f"'{name}"):
        trainer.fit(data(4))
    assert trainer.account.steps == 0
    assert model.layer.kept is kept
    assert picture(kept) == before


@pytest.mark.parametrize("hole", HOLES)
def test_state_that_is_written_only_later_is_refused_in_that_step_and_put_back(hole):
    make, write, name = HOLES[hole]
    kept = make()
    model = Model(Keeping(kept, write, start=10**9))
    trainer = build(model)
    batches = trainer.batches(data(4))
    for _ in range(3):
        trainer.step(*next(batches))
    before, weights = picture(kept), model.out.weight.clone()
    model.layer.start = 0
    with pytest.raises(NotPrivate, match=f"'{name}"):
        trainer.step(*next(batches))
    assert trainer.account.steps == 3, "nothing was charged"
    assert torch.equal(model.out.weight, weights), "nothing was released"
    assert model.layer.kept is kept or not isinstance(kept, torch.Tensor)
    if kept is model.layer.kept and not (isinstance(kept, torch.Tensor | np.ndarray) and len(kept) == LARGE):
        assert picture(kept) == before


def test_a_step_that_ends_with_an_error_leaves_no_state_behind():
    class Failing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mean, self.fails = torch.zeros(4), False

        def forward(self, x):
            if self.fails:
                self.mean = x.mean(0)
                raise ZeroDivisionError
            return x - self.mean

    model = Model(Failing())
    trainer = build(model)
    batches = trainer.batches(data(4))
    trainer.step(*next(batches))
    model.layer.fails = True
    with pytest.raises(ZeroDivisionError):
        trainer.step(*next(batches))
    assert not model.layer.mean.any()
    model.layer.fails, model.layer.mean = False, torch.ones(4)
    trainer.sampling.pending += 1
    trainer.loss = nn.CrossEntropyLoss(reduction="none")
    with pytest.raises(RuntimeError, match="was replaced"):  # before any record is seen
        trainer.step(*data(4))
    assert model.layer.mean.all(), "what was set between steps stays"


def test_a_record_cannot_move_the_updates_of_others_through_a_running_mean():
    """The attack: a mean of earlier batches is taken off, so that one record shifts every later update."""

    class Centred(nn.Module):
        mean = 0.0

        def forward(self, x):
            out = x - self.mean
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0).detach()
            return out

    with pytest.raises(NotPrivate, match=r"'layer\.mean'"):
        build(Model(Centred())).fit(data(4))


def test_a_large_buffer_written_behind_torch_s_back_is_refused():
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.zeros(LARGE))
            self.on = False

        def forward(self, x):
            if self.on:
                self.table.data[:4] = x.mean(0).detach()
            return x

    model = Model(Table())
    trainer = build(model)
    batches = trainer.batches(data(4))
    trainer.step(*next(batches))
    model.layer.on = True
    with pytest.raises(NotPrivate, match=r"'layer\.table'"):
        trainer.step(*next(batches))
    assert not model.layer.table.any()


def test_a_large_parameter_written_behind_torch_s_back_is_refused():
    class Writing(nn.Linear):
        on = True

        def forward(self, x):
            if self.on:
                self.weight.data[0] += 1e-6 * x[:, 0].mean()
            return super().forward(x)

    model = nn.Sequential(nn.Linear(4, 200), Writing(200, 100), nn.Linear(100, 2))
    note = Snapshot({"": model})
    note.note()
    model(torch.randn(8, 4))
    assert note.changed() == "1.weight"


# -- the loss ------------------------------------------------------------------------------------

COUNTS = [0, 0]
SEEN = 0
TABLE = {"counts": torch.zeros(2)}


def helper(targets):
    TABLE["counts"] += torch.bincount(targets, minlength=2)


class Owner:
    def __init__(self) -> None:
        self.counts = [0, 0]

    def loss(self, outputs, targets):
        self.counts[int(targets[0])] += 1
        return F.cross_entropy(outputs, targets, reduction="none")

    __call__ = loss


class Criterion(nn.Module):
    def forward(self, outputs, targets):
        COUNTS[0] += len(targets)
        return F.cross_entropy(outputs, targets, reduction="none")


def closure():
    counts = {"seen": [0]}

    def loss(outputs, targets):
        counts["seen"][0] += int(targets.sum())
        return F.cross_entropy(outputs, targets, reduction="none")

    return loss


def rebound():
    mean = 0.0

    def loss(outputs, targets):
        nonlocal mean
        mean = float(outputs.mean())
        return F.cross_entropy(outputs, targets, reduction="none")

    return loss


def with_argument(counts, outputs, targets):
    counts.append(int(targets.sum()))
    return F.cross_entropy(outputs, targets, reduction="none")


def with_default(outputs, targets, counts=[]):  # noqa: B006
    counts.append(int(targets.sum()))
    return F.cross_entropy(outputs, targets, reduction="none")


def with_keyword(outputs, targets, *, counts={}):  # noqa: B006
    counts[len(counts)] = 1
    return F.cross_entropy(outputs, targets, reduction="none")


def with_global(outputs, targets):
    COUNTS[1] += int(targets.sum())
    return F.cross_entropy(outputs, targets, reduction="none")


def with_global_number(outputs, targets):
    global SEEN  # noqa: PLW0603
    SEEN += int(targets.sum())
    return F.cross_entropy(outputs, targets, reduction="none")


def with_helper(outputs, targets):
    helper(targets)
    return F.cross_entropy(outputs, targets, reduction="none")


def with_attribute(outputs, targets):
    with_attribute.counts += int(targets.sum())
    return F.cross_entropy(outputs, targets, reduction="none")


with_attribute.counts = 0

LOSSES = {
    "closure": (closure, r"loss.counts\[...\]\[...\]"),
    "rebound variable": (rebound, "loss.mean"),
    "partial": (lambda: functools.partial(with_argument, []), "loss.argument 1"),
    "partial of a keyword": (lambda: functools.partial(with_keyword, counts={}), "loss.counts"),
    "bound method": (lambda: Owner().loss, r"loss.counts\[...\]"),
    "callable object": (Owner, r"loss.counts\[...\]"),
    "default argument": (lambda: with_default, "loss.counts"),
    "keyword default": (lambda: with_keyword, "loss.counts"),
    "global list": (lambda: with_global, r"loss.COUNTS\[...\]"),
    "global number": (lambda: with_global_number, "loss.SEEN"),
    "global of a module's method": (Criterion, r"loss.COUNTS\[...\]"),
    "global of a function that it calls": (lambda: with_helper, r"loss.helper.TABLE\[...\]"),
    "attribute": (lambda: with_attribute, "loss.(with_attribute.)?counts"),
}


@pytest.mark.parametrize("how", LOSSES)
def test_what_a_loss_keeps_is_refused_and_put_back(how):
    make, name = LOSSES[how]
    trainer = build(nn.Linear(4, 2), make())
    with pytest.raises(NotPrivate, match=f"'{name}"):
        trainer.fit(data(4))
    assert trainer.account.steps == 0
    assert COUNTS == [0, 0]
    assert SEEN == 0
    assert not TABLE["counts"].any()
    assert with_attribute.counts == 0
    assert with_default.__defaults__ == ([],)
    assert with_keyword.__kwdefaults__ == {"counts": {}}


@pytest.mark.parametrize("how", LOSSES)
def test_what_a_loss_begins_to_keep_later_is_refused_in_the_step(how):
    make, name = LOSSES[how]
    loss = make()
    note = Snapshot({"": nn.Linear(4, 2), "loss": loss})
    note.note()
    loss(torch.randn(4, 2), torch.ones(4).long())
    assert re.match(name, note.changed() or "")
    note.restore()
    assert note.changed() is None


# -- what must pass ------------------------------------------------------------------------------


class Masked(nn.Module):
    """A causal mask that is made when it is first needed, by length."""

    def __init__(self, size: int = 8) -> None:
        super().__init__()
        self.masks: dict[int, torch.Tensor] = {}
        self.table: torch.Tensor | None = None
        self.size = size

    def forward(self, x):
        length = x.shape[1]
        if length not in self.masks:
            self.masks[length] = torch.ones(length, length).tril()
        if self.table is None:
            self.table = torch.linspace(0, 1, LARGE)
        return (x @ self.masks[length] + self.table[:length])[:, :4]


def test_caches_that_hold_the_same_whatever_the_records_are_stay_filled_and_pass():
    model = Model(Masked())
    trainer = build(model)
    assert trainer.fit(data(4)).steps == 6
    assert list(model.layer.masks) == [4]


def test_a_cache_by_length_that_grows_in_a_step_is_refused():
    """The lengths that occur in a batch are read off its records, so a cache of them is, too."""
    model = Model(Masked())
    trainer = build(model)
    batches = trainer.batches(data(4))
    trainer.step(*next(batches))
    next(batches)
    with pytest.raises(NotPrivate, match=r"'layer\.masks"):
        trainer.step(*data(5))
    assert list(model.layer.masks) == [4]


def test_a_cache_by_the_size_of_the_batch_is_refused_before_the_first_step():
    class ByBatch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.zeros: dict[int, torch.Tensor] = {}

        def forward(self, x):
            return x + self.zeros.setdefault(len(x), torch.zeros(len(x), 1))

    with pytest.raises(NotPrivate, match=r"'layer\.zeros"):
        build(Model(ByBatch())).fit(data(4))


def test_a_statistic_taken_once_from_the_first_records_is_refused_and_no_cache():
    class Once(nn.Module):
        mean: torch.Tensor | None = None

        def forward(self, x):
            if self.mean is None:
                self.mean = x.mean(0).detach()
            return x - self.mean

    model = Model(Once())
    with pytest.raises(NotPrivate, match=r"'layer\.mean'"):
        build(model).fit(data(4))
    assert model.layer.mean is None


def test_a_count_that_two_batches_happen_to_share_is_refused_and_not_left_in_the_model():
    class Counted(nn.Module):
        most = 0

        def forward(self, x):
            self.most = int((x > 0).sum())
            return x

    inputs = torch.cat([torch.ones(16, 2), -torch.ones(16, 2)], 1)
    model = Model(Counted())
    with pytest.raises(NotPrivate, match=r"'layer\.most'"):
        build(model).fit((inputs, torch.arange(16) % 2))
    assert model.layer.most == 0


def test_state_written_anew_with_what_it_held_passes():
    class Same(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mask, self.scale, self.parts = torch.ones(4), 0.5, [1, [2.0]]
            self.register_buffer("table", torch.ones(LARGE))

        def forward(self, x):
            self.mask, self.scale, self.parts = torch.ones(4), float("0.5"), [1, [2.0]]
            self.table = torch.ones(LARGE)
            self.table.mul_(1)
            return x * self.mask * self.scale

    assert build(Model(Same())).fit(data(4)).steps == 6


def test_what_is_changed_between_steps_is_nobody_s_record():
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.log, self.table = 1.0, [], torch.zeros(LARGE)
            self.array = np.zeros(LARGE)

        def forward(self, x):
            return x * self.scale

    model = Model(Scaled())
    trainer = build(model)
    for inputs, targets in trainer.batches(data(4)):
        trainer.step(inputs, targets)
        model.layer.scale *= 0.9
        model.layer.log.append(trainer.account.steps)
        model.layer.table.data.add_(1)
        model.layer.array += 1
        model.out.bias.data.mul_(0.5)
    assert trainer.account.steps == 6


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.out = nn.LSTM(4, 5, batch_first=True), nn.Linear(5, 2)

    def forward(self, x):
        return self.out(self.body(x[:, None])[0][:, -1])


class Hooked(nn.Linear):
    """A hook that its owner put there sees values; what it does with them is the owner's."""

    def __init__(self) -> None:
        super().__init__(4, 2)
        self.register_forward_hook(lambda module, inputs, output: None)


@pytest.mark.parametrize(
    "model",
    [
        Recurrent(),
        nn.utils.parametrizations.weight_norm(nn.Linear(4, 2)),
        nn.Sequential(nn.utils.parametrizations.orthogonal(nn.Linear(4, 4)), nn.Linear(4, 2)),
        Hooked(),
        nn.Sequential(torch.jit.script(nn.ReLU()), nn.Linear(4, 2)),
    ],
    ids=["recurrent", "weight norm", "orthogonal", "hook", "script"],
)
def test_what_torch_keeps_for_itself_passes(model):
    assert build(model).fit(data(4)).steps == 6


def test_no_message_quotes_a_value_a_key_or_a_position():
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.counts, self.names = [0] * 9, {}

        def forward(self, x):
            self.counts[7] += 1
            return x

    class Naming(Counting):
        def forward(self, x):
            setattr(self, f"seen_{'Smith'}", float(x.mean()))
            return x

    for model in (Counting(), Naming()):
        with pytest.raises(NotPrivate) as refused:
            build(Model(model)).fit(data(4))
        assert "7" not in str(refused.value)
        assert "Smith" not in str(refused.value)
        assert "'layer." in str(refused.value)


# -- when contents are read ----------------------------------------------------------------------


def reads(monkeypatch) -> list:
    calls = []
    sums = state_values.checksum
    monkeypatch.setattr(state_values, "checksum", lambda value: calls.append(1) or sums(value))
    return calls


def test_large_contents_are_read_first_last_and_now_and_then(monkeypatch):
    monkeypatch.setattr(snapshot, "EVERY", 0)
    calls = reads(monkeypatch)
    note, often = Snapshot({"": nn.Linear(200, 100)}), []
    for _ in range(1000):
        calls.clear()
        note.note()
        assert note.changed() is None
        often.append(len(calls))
    assert often[0] == 2
    assert set(often) == {0, 2}
    assert 20 < sum(map(bool, often)) < 130, "one in sixteen, within seven standard deviations"
    calls.clear()
    note.note(contents=True)
    assert note.changed() is None
    assert len(calls) == 2


def test_the_moments_at_which_contents_are_read_cannot_be_foreseen_by_seeds(monkeypatch):
    monkeypatch.setattr(snapshot, "EVERY", 0)
    calls = reads(monkeypatch)

    def moments() -> list[int]:
        torch.manual_seed(0)
        np.random.seed(0)  # noqa: NPY002
        random.seed(0)
        note, found = Snapshot({"": nn.Linear(200, 100)}), []
        for _ in range(300):
            calls.clear()
            note.note()
            found.append(len(calls))
        return found

    assert moments() != moments()


def test_the_last_step_reads_large_contents_even_where_that_is_rare(monkeypatch):
    monkeypatch.setattr(snapshot, "EVERY", 0)
    monkeypatch.setattr(snapshot, "RARELY", 0)
    kept = np.zeros(LARGE, np.float32)
    model = Model(Keeping(kept, numpy_in_place, start=10**9))
    trainer = build(model, steps=3)
    batches = trainer.batches(data(4))
    trainer.step(*next(batches))
    model.layer.start = 0
    trainer.step(*next(batches))  # unseen
    with pytest.raises(NotPrivate, match=r"'layer\.kept'"):
        trainer.step(*next(batches))


def test_a_checkpoint_is_refused_when_a_large_tensor_was_written_unseen(tmp_path, monkeypatch):
    monkeypatch.setattr(snapshot, "EVERY", 0)
    monkeypatch.setattr(snapshot, "RARELY", 0)
    model = Model(Keeping(torch.zeros(LARGE), silently, start=10**9))
    trainer = build(model, ledger=Ledger(tmp_path / "ledger.sqlite"))
    batches = trainer.batches(data(4))
    trainer.step(*next(batches))
    save_checkpoint(trainer, tmp_path)
    model.layer.start = 0
    trainer.step(*next(batches))  # unseen
    with pytest.raises(NotPrivate, match=r"'layer\.kept'"):
        save_checkpoint(trainer, tmp_path)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.float16, torch.int8, torch.bool, torch.complex64]
)
@pytest.mark.parametrize("size", [SMALL, LARGE + 3])
def test_one_bit_anywhere_shows(dtype, size):
    module = nn.Module()
    module.kept = torch.zeros(2 * size, dtype=dtype)[1::2][:size] if size > SMALL else torch.zeros(size, dtype=dtype)
    note = Snapshot({"": module})
    for place in (0, size // 2, size - 1):
        note.note(contents=True)
        assert note.changed() is None
        module.kept.data[place] = 1
        assert note.changed() == "kept"
        module.kept.data[place] = 0
        assert note.changed() is None


def test_not_a_number_equals_itself_and_a_sign_of_zero_is_a_change():
    module = nn.Module()
    module.kept, module.number = torch.tensor([torch.nan, 0.0]), float("nan")
    note = Snapshot({"": module})
    note.note()
    module.number = float("nan")
    assert note.changed() is None
    module.kept.neg_()[0] = torch.nan
    assert note.changed() == "kept"


def test_the_order_of_large_contents_shows():
    module = nn.Module()
    module.kept = torch.arange(2.0 * LARGE)
    note = Snapshot({"": module})
    note.note(contents=True)
    module.kept.data.copy_(module.kept.roll(1024).clone())
    assert note.changed() == "kept"


def test_state_is_followed_to_a_depth_and_cycles_end():
    module, inner = nn.Module(), []
    module.kept = functools.reduce(lambda held, _: [held], range(DEPTH - 1), inner)
    module.itself = module.kept
    module.kept.append(module)
    note = Snapshot({"": module})
    note.note()
    inner.append(1)
    assert (note.changed() or "").startswith("kept[...]")
    note.restore()
    assert inner == []


def test_a_module_of_the_model_is_not_followed_a_second_time_under_the_loss():
    model = nn.Linear(4, 2)
    note = Snapshot({"": model, "loss": lambda outputs, targets: model(outputs)})
    note.note()
    model.kept = 1
    assert note.changed() == "*", "an attribute whose name stands in no code of the class is not named"
    note.restore()
    assert not hasattr(model, "kept")


def test_everything_is_put_back_after_a_look_at_the_model():
    kept = {"counts": [0], "queue": collections.deque([1, 2], maxlen=2)}
    model = Model(Keeping(kept, lambda module, x: (module.kept["counts"].append(1), module.kept["queue"].append(3))))
    model.layer.eval()
    with untouched(model, parameters=True):
        model.train()
        model(torch.randn(4, 4))
        model.layer.extra = 1
        model.out.weight.data.zero_()
        del model.layer.start
    assert kept == {"counts": [0], "queue": collections.deque([1, 2])}
    assert not hasattr(model.layer, "extra")
    assert model.layer.start == 0
    assert not model.layer.training
    assert model.training
    assert model.out.weight.any()


# -- large tables --------------------------------------------------------------------------------


def tables(*sizes: int) -> nn.Module:
    module = nn.Module()
    for number, size in enumerate(sizes):
        module.register_parameter(f"table{number}", nn.Parameter(torch.zeros(size), requires_grad=False))
    return module


def test_of_large_tables_a_part_is_read_at_a_time_and_every_place_has_its_turn(monkeypatch):
    monkeypatch.setattr(snapshot, "EVERY", 0)
    monkeypatch.setattr(snapshot, "RARELY", 1.0)
    monkeypatch.setattr(snapshot, "PART", 2 * LARGE)
    read = []
    sums = state_values.checksum
    monkeypatch.setattr(
        state_values, "checksum", lambda value, span=state_values.ALL: read.append((value, span)) or sums(value, span)
    )
    module = tables(3 * LARGE, 2 * LARGE, 3 * LARGE + 7)
    note = Snapshot({"": module})
    note.note()
    assert note.changed() is None
    seen = {id(table): torch.zeros(len(table)) for table in module.parameters()}
    for _ in range(200):
        read.clear()
        note.note()
        assert sum(len(range(len(value))[span]) for value, span in read) == 2 * LARGE
        for value, span in read:
            seen[id(value)][span] += 1
        assert note.changed() is None
    counts = torch.cat(list(seen.values()))
    assert 10 < counts.min() <= counts.max() < 100, "a quarter of 200 times"


def test_a_write_behind_torch_s_back_is_seen_where_the_part_that_is_read_contains_it(monkeypatch):
    monkeypatch.setattr(snapshot, "EVERY", 0)
    monkeypatch.setattr(snapshot, "RARELY", 1.0)
    monkeypatch.setattr(snapshot, "PART", 2 * LARGE)
    module = tables(4 * LARGE, 4 * LARGE)
    note, found = Snapshot({"": module}), []
    note.note()
    for place in range(0, 4 * LARGE, 2**9):
        note.note()
        module.table1.data[place] += 1
        found.append(note.changed())
    assert set(found) == {None, "table1"}
    assert 5 < found.count("table1") < 70, "a quarter of 129 times"
    note.note(contents=True)
    module.table1.data[17] += 1
    assert note.changed() == "table1", "the first and the last step read everything"
    assert note.verify_contents() == "table1", "and so does a checkpoint"


def test_a_large_frozen_table_is_read_rarely_and_never_whole(monkeypatch):
    module, read = tables(20 * 2**20), []
    note = Snapshot({"": module})
    note.note()
    assert note.changed() is None
    sums = state_values.checksum
    monkeypatch.setattr(
        state_values, "checksum", lambda value, span=state_values.ALL: read.append(span) or sums(value, span)
    )
    for _ in range(400):
        note.note()
        assert note.changed() is None
    assert 10 < len(read) / 2 < 100, "a tenth of 400 times; a part that goes past the end counts twice"
    assert all(span.stop - span.start <= snapshot.PART for span in read)


def test_what_is_put_in_between_steps_is_followed_from_then_on():
    class Held(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kept, self.number = {"a": [0.0]}, 1.0

    class Own:
        def __call__(self, outputs, targets):
            return outputs.sum(1)

    def counting(self, outputs, targets, seen=[]):  # noqa: B006
        seen.append(1)
        return outputs.sum(1)

    model, loss = Held(), Own()
    note = Snapshot({"": model, "loss": loss})
    for change, write, name in (
        (lambda: setattr(model, "number", 2.0), lambda: setattr(model, "number", 3.0), "number"),
        (lambda: model.kept.update(b=[1.0]), lambda: model.kept["b"].append(2.0), "kept"),
        (lambda: setattr(model, "layer", nn.Linear(2, 2)), lambda: model.layer.bias.data.add_(1), "layer.bias"),
        (lambda: setattr(model.layer.bias, "mark", [0]), lambda: model.layer.bias.mark.append(1), "layer.bias.mark"),
        (lambda: setattr(Own, "__call__", counting), lambda: loss(torch.zeros(1, 1), None), "loss.seen"),
    ):
        note.note()
        assert note.changed() is None
        change()
        note.note()
        assert note.changed() is None
        write()
        assert (note.changed() or "").startswith(name)
        note.restore()
