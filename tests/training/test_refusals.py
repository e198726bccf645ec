"""Models in which samples interact are refused before anything is released."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gnomon
from gnomon import methods
from gnomon.clipping import RULES, ClipRule, EmbeddingAndResidual, Fair, PerLayer, UpdateAndLoss
from gnomon.subspaces import Basis, StepContext, Subspace
from gnomon.training import NotPrivate
from gnomon.training.checks.clip_rule import refuse_mixing_rule
from gnomon.updates import Dense, Updates

PER_SAMPLE = nn.CrossEntropyLoss(reduction="none")


def build(model: nn.Module, loss=PER_SAMPLE, **settings) -> gnomon.Trainer:
    return gnomon.Trainer(
        model, loss, torch.optim.SGD(model.parameters(), lr=0.1),
        sample_rate=0.5, expected_batch_size=8, noise_multiplier=1.0, target_delta=1e-3, steps=2,
        progress=False, **settings,
    )  # fmt: skip


def data(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(16, *shape), torch.randint(0, 2, (16,))


class Wrapped(nn.Module):
    def __init__(self, mix) -> None:
        super().__init__()
        self.layer, self.mix = nn.Linear(4, 2), mix

    def forward(self, x):
        return self.layer(self.mix(x))


def frozen(module: nn.Module) -> nn.Module:
    return module.requires_grad_(False)


@pytest.mark.parametrize(
    "norm",
    [
        nn.BatchNorm1d(4),
        frozen(nn.BatchNorm1d(4)),
        nn.BatchNorm1d(4, affine=False),
        nn.BatchNorm1d(4, track_running_stats=False),
        nn.SyncBatchNorm(4),
        nn.BatchNorm1d(4).eval(),
    ],
)
def test_batch_norm_modules_are_refused_at_construction_in_any_form(norm):
    with pytest.raises(NotPrivate, match="mixes the samples"):
        build(nn.Sequential(norm, nn.Linear(4, 2)))


@pytest.mark.parametrize(
    "mix",
    [
        lambda x: F.batch_norm(x, None, None, training=True),
        lambda x: x - x.mean(0),
        lambda x: x / x.abs().max(),
        lambda x: x + 0.01 * x.sum(0, keepdim=True),
        lambda x: x * len(x),
        lambda x: x.roll(1, 0),
        lambda x: x.sort(0).values,
    ],
    ids=["functional batch norm", "centred", "scaled", "weak sum", "counted", "shifted", "sorted"],
)
def test_hidden_dependence_is_found_before_the_first_release(mix):
    t = build(Wrapped(mix))
    with pytest.raises(NotPrivate, match="mixes samples"):
        t.fit(data(4))
    assert t.account.steps == 0


class Longest(nn.Module):
    """Reads its state where the batch's longest sequence ends."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.state, self.score = nn.Embedding(50, 8, padding_idx=0), nn.GRU(8, 8), nn.Linear(8, 2)

    def forward(self, x):
        last = (x != 0).sum(1).max() - 1
        return self.score(self.state(self.embed(x).transpose(0, 1))[0].index_select(0, last[None])[0])


def padded(n: int = 16, length: int = 20) -> torch.Tensor:
    ends = torch.randperm(length)[:n].clamp(min=2)
    return torch.randint(1, 50, (n, length)).where(torch.arange(length) < ends[:, None], 0)


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (Wrapped(lambda x: x / x.max()), torch.rand(16, 4) + 0.5),
        (Wrapped(lambda x: x / x.amax(0, keepdim=True)), torch.rand(16, 4) + 0.5),
        (Wrapped(lambda x: x / x.max()), torch.randint(0, 100, (16, 4))),
        (nn.Sequential(Wrapped(lambda x: x / x.max()), nn.Dropout(0.1)), torch.rand(16, 4) + 0.5),
        (Longest(), padded()),
    ],
    ids=["largest", "largest by column", "largest whole number", "behind dropout", "longest sequence"],
)
def test_what_depends_on_the_batch_s_extremes_is_refused(model, inputs):
    for _ in range(3):
        with pytest.raises(NotPrivate, match="mixes samples"):
            build(model).check((inputs, torch.arange(16) % 2))


@pytest.mark.parametrize("size", [2, 3, 5, 30])
def test_few_records_and_large_examples_pass_where_samples_are_independent(size):
    inputs, targets = torch.randn(size, 4), torch.arange(size) % 2
    build(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.2), nn.Linear(4, 2)), example=(inputs, targets))


def test_dependence_is_found_at_construction_when_an_example_is_given():
    with pytest.raises(NotPrivate):
        build(Wrapped(lambda x: x - x.mean(0)), example=data(4))


def test_a_loss_that_compares_samples_is_refused():
    def ranking(outputs, targets):
        return PER_SAMPLE(outputs, targets) + outputs[:, 0] * outputs[:, 0].mean()

    with pytest.raises(NotPrivate):
        build(nn.Linear(4, 2), ranking).fit(data(4))


def test_a_loss_put_in_the_place_of_one_that_passed_is_checked_as_well():
    t = build(nn.Linear(4, 2), example=data(4))
    t.loss = lambda outputs, targets: PER_SAMPLE(outputs - outputs.mean(0), targets)
    with pytest.raises(NotPrivate, match="mixes samples"):
        t.fit(data(4))
    assert t.account.steps == 0


def test_buffers_that_a_forward_pass_changes_are_refused():
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)
            self.register_buffer("seen", torch.zeros(4))

        def forward(self, x):
            self.seen += x.detach().sum(0)
            return self.layer(x)

    model = Counting()
    t = build(model)
    with pytest.raises(NotPrivate, match="'seen'"):
        t.fit(data(4))
    assert not model.seen.any()


class Balanced(nn.Module):
    """Counts classes for later, when it will weigh by the counts."""

    reduction = "mean"

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("counts", torch.zeros(2))

    def forward(self, outputs, targets):
        self.counts += torch.bincount(targets, minlength=2)
        return F.cross_entropy(outputs, targets, reduction="none")


class Caller:
    def __init__(self, criterion) -> None:
        self.criterion = criterion

    def __call__(self, outputs, targets):
        return self.criterion(outputs, targets)

    def named(self, outputs, targets):
        return self.criterion(outputs, targets)


@pytest.mark.filterwarnings("ignore:.*reduces over the batch")
@pytest.mark.parametrize(
    "wrap",
    [
        lambda loss: loss,
        lambda loss: lambda outputs, targets: loss(outputs, targets),
        lambda loss: functools.partial(loss),
        lambda loss: loss.forward,
        Caller,
        lambda loss: Caller(loss).named,
    ],
    ids=["itself", "closure", "partial", "method", "attribute", "attribute of a method's owner"],
)
def test_a_loss_that_keeps_what_it_saw_is_refused_and_put_back(wrap):
    loss = Balanced()
    t = build(nn.Linear(4, 2), wrap(loss))
    with pytest.raises(NotPrivate, match=r"'loss\.(\w+\.)?counts'"):
        t.fit(data(4))
    assert t.account.steps == 0
    assert loss.counts.tolist() == [0, 0]


def test_instance_norm_with_running_statistics_is_refused():
    model = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.InstanceNorm2d(2, track_running_stats=True), nn.Flatten(), nn.Linear(8, 2)
    )
    with pytest.raises(NotPrivate):
        build(model).fit(data(1, 4, 4))


@pytest.mark.parametrize(
    "middle",
    [
        nn.LayerNorm(4),
        nn.Dropout(0.5),
        nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True)),
        nn.PReLU(),
        nn.Identity(),
    ],
)
def test_models_of_independent_samples_pass(middle):
    t = build(nn.Sequential(middle, nn.Linear(4, 2)))
    assert t.fit(data(4)).steps == 2


def test_functional_dropout_passes():
    t = build(Wrapped(lambda x: F.dropout(x, 0.5)))
    assert t.fit(data(4)).steps == 2


def test_the_check_leaves_model_and_random_state_alone():
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 2))
    model[0].eval()
    state = {k: v.clone() for k, v in model.state_dict().items()}
    x, y = data(4)
    random = torch.get_rng_state()
    build(model, example=(x, y))
    assert torch.equal(random, torch.get_rng_state())
    assert not model[0].training
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())


class Median(ClipRule):
    """Clips at the median norm of the batch."""

    name = "median"

    def weights(self, norms, bound):
        return (norms.median().clamp_max(bound) / norms.norm(dim=1, keepdim=True)).clamp_max(1.0)


class Adapting(ClipRule):
    """Clips at what most were long so far."""

    name, cut = "adapting", 1.0

    def weights(self, norms, bound):
        self.cut = min(bound, 0.9 * self.cut + 0.1 * float(norms.median()))
        return (self.cut / norms.norm(dim=1, keepdim=True)).clamp_max(1.0)


@pytest.mark.parametrize("rule", [Median(), Adapting()])
def test_a_clip_rule_that_looks_at_other_samples_is_refused_before_the_first_release(rule):
    t = build(nn.Linear(4, 2), method=methods.Method("mine", clip=rule))
    with pytest.raises(NotPrivate, match=f"clip rule '{rule.name}'"):
        t.fit(data(4))
    assert t.account.steps == 0


@pytest.mark.parametrize(
    "rule",
    [*(kind() for kind in RULES.values()), Fair(0.5, reference=1.0), Fair(), UpdateAndLoss(), EmbeddingAndResidual()],
    ids=lambda rule: rule.name,
)
@pytest.mark.parametrize("bound", [1e-6, 1.0, 1e6])
def test_the_rules_of_the_library_look_at_one_sample_at_a_time(rule, bound):
    refuse_mixing_rule(rule, blocks=3, bound=bound)


class Centred(Subspace, Basis):
    """All parameters, after the mean of the batch was taken away."""

    name = "centred"

    def key(self, context):
        return 0

    def basis(self, context):
        self.like = context.like
        return self

    def coordinates(self, updates):
        mean = {name: leaf.dense().mean(0) for name, leaf in updates.leaves.items()}
        return Updates({n: Dense(leaf.dense() - mean[n]) for n, leaf in updates.leaves.items()}, updates.losses)

    def lift(self, vector):
        return dict(vector)


def test_a_basis_that_mixes_samples_is_refused_before_the_first_release():
    t = build(nn.Linear(4, 2), method=methods.Method("mine", subspace=Centred()))
    with pytest.raises(NotPrivate, match="the model, the loss or the subspace mixes"):
        t.fit(data(4))
    assert t.account.steps == 0


def test_an_optimizer_of_other_parameters_is_refused():
    model, other = nn.Linear(4, 2), nn.Linear(4, 2)
    settings = {
        "sample_rate": 0.5,
        "expected_batch_size": 8,
        "noise_multiplier": 1.0,
        "target_delta": 1e-3,
        "steps": 2,
    }
    with pytest.raises(ValueError, match="does not hold weight, bias"):
        gnomon.Trainer(model, PER_SAMPLE, torch.optim.SGD(other.parameters(), lr=1), **settings)
    both = [*model.parameters(), *other.parameters()]
    with pytest.raises(ValueError, match="not the model's"):
        gnomon.Trainer(model, PER_SAMPLE, torch.optim.SGD(both, lr=1), **settings)
    with pytest.raises(ValueError, match="nothing to train"):
        gnomon.Trainer(frozen(nn.Linear(4, 2)), PER_SAMPLE, torch.optim.SGD(other.parameters(), lr=1), **settings)


def mixture(drop: bool, outputs: int = 2, functional: bool = False) -> nn.Module:
    class Functional(nn.Module):
        def forward(self, x):
            return F.dropout(x, 0.2, self.training)

    middle = [Functional() if functional else nn.Dropout(0.2)] if drop else []
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), *middle, nn.Linear(8, outputs))


def balanced(outputs, targets):
    counts = torch.bincount(targets, minlength=2).clamp(min=1).float()
    return PER_SAMPLE(outputs, targets) * (len(targets) / counts[targets])


def averaged(outputs, targets):
    return PER_SAMPLE(outputs, targets) / len(targets)


def standardised(outputs, targets):
    return (outputs[:, 0] - (targets - targets.mean()) / targets.std().clamp(min=1e-6)) ** 2


@pytest.mark.parametrize("drop", [False, True], ids=["plain", "dropout"])
@pytest.mark.parametrize("prevalence", [0.5, 0.1, 0.01])
def test_a_loss_that_weighs_classes_within_the_batch_is_refused_however_rare_a_class_is(drop, prevalence):
    targets = torch.arange(200).lt(200 * prevalence).long()
    for _ in range(5):
        with pytest.raises(NotPrivate, match="mixes samples"):
            build(mixture(drop), balanced).check((torch.randn(200, 4), targets))


@pytest.mark.parametrize("model", [mixture(False), mixture(True), mixture(True, functional=True)])
def test_a_loss_divided_by_the_size_of_the_batch_is_refused_with_and_without_dropout(model):
    with pytest.raises(NotPrivate, match="removed"):
        build(model, averaged).check(data(4))


@pytest.mark.parametrize("drop", [False, True], ids=["plain", "dropout"])
def test_targets_standardised_within_the_batch_are_refused(drop):
    with pytest.raises(NotPrivate, match="another target"):
        build(mixture(drop, outputs=1), standardised).check((torch.randn(50, 4), torch.randn(50)))


def test_a_model_that_mixes_behind_its_own_noise_is_refused():
    with pytest.raises(NotPrivate, match="mixes samples"):
        build(Wrapped(lambda x: (x + torch.randn_like(x)) * len(x))).check(data(4))
    with pytest.raises(NotPrivate, match="mixes samples"):
        build(Wrapped(lambda x: 0.7 * x + 0.3 * x[torch.randperm(len(x))])).check(data(4))


def test_a_second_class_is_looked_for_among_the_items_of_a_dataset():
    class Items(torch.utils.data.Dataset):
        def __len__(self):
            return 100

        def __getitem__(self, i):
            return torch.randn(4), int(i == 63)

    with pytest.raises(NotPrivate):
        build(nn.Linear(4, 2), balanced).check(Items())


def test_an_example_of_one_class_does_not_replace_the_check_on_the_records():
    x, _ = data(4)
    t = build(nn.Linear(4, 2), balanced, example=(x, torch.zeros(16).long()))
    with pytest.raises(NotPrivate):
        t.check((x, torch.arange(16) % 2))


class Recurrent(nn.Module):
    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(20, 6), nn.Linear(5, 2)
        self.body = nn.LSTM(6, 5, num_layers=2, dropout=0.5, batch_first=batch_first)

    def forward(self, x):
        words = self.embed(x)
        last = self.body(words)[0][:, -1] if self.body.batch_first else self.body(words.transpose(0, 1))[0][-1]
        return self.out(last)


class Attentive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(20, 8), nn.Linear(8, 2)
        self.body = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.3, batch_first=True)

    def forward(self, x):
        return self.out(self.body(self.embed(x)).mean(1))


@pytest.mark.parametrize("model", [Recurrent(True), Recurrent(False), Attentive()])
def test_models_of_sequences_with_dropout_pass(model):
    build(model).check((torch.randint(0, 20, (16, 7)), data(4)[1]))


@pytest.mark.parametrize(
    "chance",
    [
        lambda x, own: x + torch.randn_like(x),
        lambda x, own: x + torch.randn(x.shape, generator=own),
        lambda x, own: x * torch.bernoulli(torch.full(x.shape, 0.8), generator=own),
        lambda x, own: x * (torch.rand(x.shape) < 0.7),
        lambda x, own: x + torch.randint(0, 3, x.shape, generator=own),
        lambda x, own: x if torch.rand(()) < 0.5 else x.relu(),
        lambda x, own: F.gumbel_softmax(x),
        lambda x, own: F.rrelu(x, training=True),
        lambda x, own: x + torch.multinomial(x.softmax(1), 4),
        lambda x, own: x * torch.distributions.Beta(0.4, 0.4).sample((len(x), 1)),
    ],
)
def test_noise_of_the_models_own_passes_and_its_generator_stays_where_it_was(chance):
    own = torch.Generator().manual_seed(3)
    before, everywhere = own.get_state(), torch.get_rng_state()
    model = Wrapped(lambda x: chance(x, own))
    torch.set_rng_state(everywhere)
    build(model).check((torch.ones(16, 4), torch.arange(16) % 2))
    assert torch.equal(own.get_state(), before)
    assert torch.equal(torch.get_rng_state(), everywhere)


def test_fixed_class_weights_real_targets_and_several_outputs_pass():
    x, y = data(4)
    real = torch.randn(16)
    weighted = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 9.0]), reduction="none")
    build(mixture(True), weighted).check((x, y))
    build(mixture(True, 1), lambda out, t: (out[:, 0] - t) ** 2).check((x, real))
    build(mixture(True, 1), lambda out, t: F.binary_cross_entropy_with_logits(out[:, 0], t, reduction="none")).check(
        (x, y.float())
    )
    build(mixture(True, 3), lambda out, t: PER_SAMPLE(out[:, :2], t["class"]) + (out[:, 2] - t["real"]) ** 2).check(
        (x, {"class": y, "real": real})
    )


def test_random_numbers_that_torch_does_not_know_of_are_named():
    model = Wrapped(lambda x: x + torch.from_numpy(np.random.default_rng().normal(size=x.shape)).float())
    with pytest.raises(NotPrivate, match="draw with torch"):
        build(model).check(data(4))


def test_a_model_on_a_device_without_double_precision_is_refused_by_name(monkeypatch):
    monkeypatch.setattr(nn.Parameter, "device", torch.device("mps"))
    with pytest.raises(ValueError, match="device = 'mps' is invalid"):
        build(nn.Linear(4, 2))


# -- what a clip rule or a basis makes of a small dependence ---------------------------------------


class Whispering(nn.Module):
    """Each sample's output holds, a million times weaker, what the batch has in common."""

    def __init__(self, loudness: float = 1e-6) -> None:
        super().__init__()
        self.body, self.branch, self.head, self.loudness = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 2), loudness

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.body(x)
        return self.head(h + self.loudness * self.branch(h - h.mean(0)))


class Quiet(Whispering):
    """The same without the mean over the batch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.body(x)
        return self.head(h + self.loudness * self.branch(h))


@pytest.mark.parametrize("loudness", [1e-3, 1e-6, 1e-9])
def test_a_dependence_that_per_layer_clipping_would_lengthen_is_refused(loudness):
    method = methods.Method("per layer", clip=PerLayer())
    with pytest.raises(NotPrivate, match="mixes samples"):
        build(Whispering(loudness), method=method, max_grad_norm=1e-9).check(data(4))
    build(Quiet(loudness), method=method, max_grad_norm=1e-9).check(data(4))


def test_a_dependence_that_a_mask_leaves_alone_in_the_coordinates_is_refused():
    model = Whispering(1e-5)
    branch = {name: torch.full_like(p, "branch" in name, dtype=torch.bool) for name, p in model.named_parameters()}

    class BranchOnly(Subspace):
        """Coordinates that hold nothing but the weak branch."""

        name = "branch only"

        def key(self, context: StepContext) -> int:
            return 0

        def basis(self, context: StepContext) -> BranchBasis:
            return BranchBasis(context.like)

    class BranchBasis(Basis):
        def __init__(self, like: dict[str, torch.Tensor]) -> None:
            self.like = {name: value for name, value in like.items() if branch[name].any()}

        def coordinates(self, updates: Updates) -> Updates:
            return Updates({name: updates.leaves[name] for name in self.like}, updates.losses)

        def lift(self, vector: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            return {name: vector.get(name, torch.zeros(m.shape)) for name, m in branch.items()}

    method = methods.Method("branch", subspace=BranchOnly())
    with pytest.raises(NotPrivate, match="mixes samples"):
        build(model, method=method, max_grad_norm=1e-9).check(data(4))
    build(Quiet(1e-5), method=method, max_grad_norm=1e-9).check(data(4))


def test_attention_passes_under_per_layer_clipping_although_some_of_its_gradients_are_rounding():
    method = methods.Method("per layer", clip=PerLayer())
    build(Attentive(), method=method).check((torch.randint(0, 20, (16, 7)), data(4)[1]))


# -- batches that somebody collated ----------------------------------------------------------------


class Pooled(nn.Module):
    """The mean over a sequence, with what pads it or without."""

    def __init__(self, masked: bool) -> None:
        super().__init__()
        self.table, self.head, self.masked = nn.Embedding(9, 4), nn.Linear(4, 2), masked

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        counts = (tokens != 0).float()[..., None] if self.masked else torch.ones(*tokens.shape, 1)
        return self.head((self.table(tokens) * counts).sum(1) / counts.sum(1))


def collated_steps(model: nn.Module, left: bool = False) -> None:
    """A loop that draws records with `batches`, and pads each batch to its longest record."""
    draw = torch.Generator().manual_seed(0)
    lengths = torch.randint(2, 12, (40,), generator=draw)
    texts = [torch.randint(1, 9, (int(n),), generator=draw) for n in lengths]
    numbers, targets = torch.arange(40), torch.arange(40) % 2

    def collate(chosen: torch.Tensor) -> torch.Tensor:
        some = [texts[int(i)] for i in chosen]
        longest = max((len(text) for text in some), default=1)
        rows = [F.pad(text, (longest - len(text), 0) if left else (0, longest - len(text))) for text in some]
        return torch.stack(rows) if rows else torch.zeros(0, 1, dtype=torch.long)

    example = collate(torch.arange(6))[:, :7], targets[:6]
    trainer = gnomon.Trainer(
        model, PER_SAMPLE, torch.optim.SGD(model.parameters(), lr=0.1), sample_rate=0.2, expected_batch_size=8,
        noise_multiplier=1.0, target_delta=1e-3, steps=12, progress=False, example=example,
    )  # fmt: skip
    for chosen, wanted in trainer.batches((numbers, targets)):
        trainer.step(collate(chosen), wanted)
    assert trainer.account.steps == 12


@pytest.mark.parametrize("left", [False, True])
def test_a_model_that_pools_over_padding_is_refused_in_a_loop_with_collated_batches(left):
    with pytest.raises(NotPrivate, match="with less padding"):
        collated_steps(Pooled(masked=False), left)
    collated_steps(Pooled(masked=True), left)


def test_a_collated_batch_of_a_model_that_mixes_records_of_other_shapes_is_refused():
    class Longish(Pooled):
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            out = super().forward(tokens)
            return out - out.mean(0) if tokens.shape[1] != 7 else out  # the example has seven

    with pytest.raises(NotPrivate, match="mixes samples"):
        collated_steps(Longish(masked=True))


# -- several processes -----------------------------------------------------------------------------


def test_models_for_several_processes_are_refused_by_name(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(nn.Linear(4, 2))
        with pytest.raises(NotPrivate, match="wrapped in DistributedDataParallel"):
            build(wrapped)
        with pytest.raises(NotPrivate, match=r"module '1' is wrapped in DistributedDataParallel"):
            build(nn.Sequential(nn.ReLU(), wrapped))
        from torch.distributed.fsdp import fully_shard

        sharded = nn.Linear(4, 2)
        fully_shard(sharded, mesh=torch.distributed.device_mesh.init_device_mesh("cpu", (1,)))
        with pytest.raises(NotPrivate, match="FSDPModule"):
            build(sharded)
        from torch.distributed.tensor import Shard, distribute_tensor

        parallel = nn.Linear(4, 2)
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
        parallel.weight = nn.Parameter(distribute_tensor(parallel.weight.detach(), mesh, [Shard(0)]))
        with pytest.raises(NotPrivate, match="parameter 'weight' is a DTensor"):
            build(parallel)
    finally:
        torch.distributed.destroy_process_group()
