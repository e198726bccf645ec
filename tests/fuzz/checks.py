"""What must hold for every case: exact per-sample updates, bounded neighbours, broken records that count nothing."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from gnomon import methods
from gnomon.accounting import FullBatch
from gnomon.clipping import RULES, ClipRule, Fair, PerLayer
from gnomon.methods import FORMS, METHODS, LocalSteps, Method
from gnomon.release import Door, SeededNoise
from gnomon.subspaces import Basis, StepContext
from gnomon.subspaces.gaussian_sketch import SketchBasis
from gnomon.training import Trainer
from gnomon.updates import Updates, gradients
from gnomon.updates.trees import call
from tests.fuzz.cases import Case, Records, case, join, take
from tests.fuzz.models import Dropout
from tests.updates.zoo import loop

ROOM = 1e-4
"""How far the released sum may move beyond the clip bound, as a part of it."""

STEPS, RATE = 2, 0.05
"""The local steps of dp-lsgd."""


class Broken(AssertionError):
    """A claim that does not hold for a case."""


class Unequal(Broken):
    """Two ways to compute the same differ by more than rounding, unless the model magnifies it."""


@dataclass
class Tally:
    """What was checked, and how near it came to the bound."""

    cases: int = 0
    neighbours: int = 0
    worst: float = 0.0
    worst_seed: int | None = None
    unsteady: list[int] = field(default_factory=list)
    """Cases with a record at which the model's own gradient is decided by rounding."""
    by_method: dict[str, int] = field(default_factory=dict)
    worst_by_layer: float = 0.0
    """The same for clipping by layer, which leaves the rounding of one layer whole where it clips another."""

    worst_unsteady: float = 0.0

    def add(self, other: Tally) -> None:
        """Count what another one has counted as well."""
        self.neighbours += other.neighbours
        for method, count in other.by_method.items():
            self.by_method[method] = self.by_method.get(method, 0) + count
        self.worst_by_layer = max(self.worst_by_layer, other.worst_by_layer)
        if other.worst > self.worst:
            self.worst, self.worst_seed = other.worst, other.worst_seed

    def moved(self, ratio: float, seed: int, method: str, by_layer: bool) -> None:
        self.neighbours += 1
        self.by_method[method] = self.by_method.get(method, 0) + 1
        if by_layer:
            self.worst_by_layer = max(self.worst_by_layer, ratio)
        elif ratio > self.worst:
            self.worst, self.worst_seed = ratio, seed


def check(seed: int, tally: Tally | None = None) -> None:
    """Every claim for the case of a seed.

    Raises:
        Broken: a claim does not hold. The message names the seed and the command that repeats the case.
    """
    tally = Tally() if tally is None else tally
    try:
        found = case(seed)
        title = found.title
    except Exception as error:
        raise Broken(_message(seed, "no case", error)) from error
    moves = Tally()
    try:
        Checks(found, moves).all()
        tally.add(moves)
    except Exception as error:
        if isinstance(error, Unequal) and unsteady(case(seed)):  # as it was, if a check has changed it
            tally.unsteady.append(seed)
            tally.worst_unsteady = max(tally.worst_unsteady, moves.worst, moves.worst_by_layer)
        else:
            raise Broken(_message(seed, title, error)) from error
    tally.cases += 1


def unsteady(about: Case) -> bool:
    """Whether plain torch, one record at a time, has another gradient in float32 or with weights a hair away.

    So it is where a norm of equal numbers meets the edge of a ReLU: whether 0 or 1e-9 comes out, and with it the
    gradient, is a matter of rounding, which may differ from batch to batch.
    """
    draw = torch.Generator().manual_seed(about.seed)

    def rows(dtype: torch.dtype, nudge: float) -> tuple[Tensor, Tensor]:
        model = copy.deepcopy(about.model).to(dtype)
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(1 + nudge * torch.randn(p.shape, generator=draw, dtype=torch.float64))
        records = pytree.tree_map_only(Tensor, lambda t: t.to(dtype) if t.is_floating_point() else t, about.records)
        return loop(model, about.loss, *records).double(), local_loop(model, about.loss, *records).double()

    exact = rows(torch.float64, 0.0)
    others = [rows(torch.float32, 0.0), *(rows(torch.float64, 1e-7) for _ in range(3))]
    return any(
        bool(((one - two).norm(dim=1) > 1e-4 * two.norm(dim=1)).any())
        for other in others
        for one, two in zip(other, exact, strict=True)
    )


def _message(seed: int, title: str, error: Exception) -> str:
    what = str(error) or type(error).__name__
    kind = "" if isinstance(error, Broken) else f"{type(error).__name__}: "
    return f"seed {seed} ({title}): {kind}{what}\nrepeat with: python -m tests.fuzz {seed}"


class Checks:
    """The claims, one method each. Randomness is that of the case."""

    def __init__(self, about: Case, tally: Tally) -> None:
        self.case, self.tally, self.rng = about, tally, Random(about.seed + 1)
        self.single = about.dtype is torch.float32
        self.known: dict[Callable[..., Updates], dict[str, list[Updates]]] = {}

    def all(self) -> None:
        everybody = join(self.case.records, self.case.neighbour)
        chosen = self.methods()
        local = self.rng.random() < 0.3 or any(method.displaces for method in chosen)
        for update in (gradients, LocalSteps(STEPS, RATE))[: 1 + local]:
            self.updates_equal_the_loop(update)
            self.norms_are_those_of_the_matrices(self.updates(update, everybody))
        self.sums_equal_the_batch_gradient_with_dropout()
        for method in chosen:
            self.one_record_moves_the_sum_by_no_more_than_the_bound(method)
        if not self.single and self.rng.random() < 0.25:
            # with the same basis on both sides, and no public records, which could be private ones here
            fixed = [method for method in chosen if method.name in ("dp-sgd", "dp-lsgd")]
            self.one_record_moves_a_trained_model_by_no_more_than_the_bound(self.rng.choice(fixed))

    # -- updates ---------------------------------------------------------------------------------

    def updates(self, update: Callable[..., Updates], records: Records) -> Updates:
        return update(self.case.model, self.case.loss, *records)

    def updates_equal_the_loop(self, update: Callable[..., Updates]) -> None:
        """For the ordinary records: extreme ones may be ill-conditioned, where two ways to round are two results."""
        found = self.updates(update, self.case.records)
        if isinstance(update, LocalSteps):
            expected = local_loop(self.case.model, self.case.loss, *self.case.records)
        else:
            expected = loop(self.case.model, self.case.loss, *self.case.records)
        dense = found.dense()
        scale = torch.maximum(expected.double().norm(dim=1), found.ceilings_by_parameter().norm(dim=1))
        apart = (dense.double() - expected.double()).norm(dim=1)
        room = (3e-4 if self.single else 1e-9) * scale + (1e-6 if self.single else 1e-12)
        _require(bool((apart <= room).all()), f"updates are not those of a loop: {apart / scale}", Unequal)
        weights = torch.rand(len(dense), generator=torch.Generator().manual_seed(self.case.seed), dtype=torch.float64)
        total = torch.cat([part.flatten() for part in found.weighted_sum(weights).values()]).double()
        summed = weights @ dense.double()
        limit = (1e-5 if self.single else 1e-12) * (weights @ scale) + 1e-20
        _require(float((total - summed).norm()) <= float(limit), "the weighted sum is not that of the rows")
        gram, exact = found.gram(found).double(), dense.double() @ dense.double().T
        limits = (1e-5 if self.single else 1e-12) * scale[:, None] * scale + 1e-30
        _require(bool(((gram - exact).abs() <= limits).all()), "inner products are not those of the rows")

    def norms_are_those_of_the_matrices(self, updates: Updates) -> None:
        """Also for extreme records. What float32 cannot write down has no norm to be right about."""
        norms, ceilings = updates.norms_by_parameter(), updates.ceilings_by_parameter()
        for column, (name, leaf) in enumerate(updates.leaves.items()):
            rows = leaf.double().dense().reshape(len(leaf), leaf.shape.numel())
            plain = leaf.dense().reshape(len(leaf), leaf.shape.numel())
            largest = rows.abs().amax(1).clamp_min(1e-300)
            exact = (rows / largest[:, None]).norm(dim=1) * largest
            written, finite = plain.isfinite().all(1) & (largest < 1e150), rows.isfinite().all(1)
            mine, above = norms[:, column], ceilings[:, column]
            room = 1e-5 * exact + 1e-6 * above + 1e-20
            right = mine.isfinite() & above.isfinite() & ((mine - exact).abs() <= room) & (above >= exact - room)
            _require(bool((right | ~written).all()), f"norms of {name} ({type(leaf).__name__}): {mine}, not {exact}")
            _require(not bool(mine[~finite].isfinite().any()), f"{name}: a norm for what is not finite: {mine}")

    def sums_equal_the_batch_gradient_with_dropout(self) -> None:
        """With masks drawn anew: one forward pass draws as the plain model does, and nothing else draws."""
        layers = [m for m in self.case.model.modules() if isinstance(m, Dropout)]
        if not layers:
            return
        parameters = [p for p in self.case.model.parameters() if p.requires_grad]
        inputs, targets = self.case.records
        try:
            for one in layers:
                one.fresh = True
            torch.manual_seed(self.case.seed)
            found = self.updates(gradients, self.case.records)
            torch.manual_seed(self.case.seed)
            losses = self.case.loss(call(self.case.model, inputs), targets)
        except RuntimeError as error:
            if "draws random numbers" in str(error):  # dropout around a parameter that needs vmap: refused, in words
                return
            raise
        finally:
            for one in layers:
                one.fresh = False
        grads = torch.autograd.grad(losses.sum(), parameters, allow_unused=True)
        plain = torch.cat(
            [
                torch.zeros_like(p).flatten() if g is None else g.flatten()
                for p, g in zip(parameters, grads, strict=True)
            ]
        )
        scale = float(found.ceilings_by_parameter().norm(dim=1).sum())
        apart = float((found.dense().double().sum(0) - plain.double()).norm())
        room = (3e-4 if self.single else 1e-9) * scale + 1e-6
        _require(apart <= room, f"with dropout the updates sum to something else, {apart} away", Unequal)

    # -- the release -----------------------------------------------------------------------------

    def methods(self) -> list[Method]:
        """DP-SGD with some rules, and some other methods with a rule each; over the cases all get their turn."""
        rng = self.rng
        rules = [make() for make in RULES.values()]
        rules.append(Fair(strength=rng.choice([0.1, 2.0]), reference=rng.choice([None, 0.5]), inner=rng.choice(rules)))
        others = rng.sample([name for name in METHODS if name != "dp-sgd"], 3)
        plain = [methods.dp_sgd(clip=rule) for rule in rng.sample(rules, 2)]
        return plain + [self.method(name, rng.choice(rules)) for name in others]

    def method(self, name: str, rule: ClipRule) -> Method:
        rng, public = self.rng, self.case.public
        rank = rng.choice([1, 2, 4, 0.9])
        settings: dict[str, dict[str, Any]] = {
            "pdp": {"public": public, "rank": rank, "per_tensor": rng.random() < 0.4, "clip": rule},
            "pcdp": {"public": public, "rank": rank, "per_tensor": rng.random() < 0.4, "clip": rule},
            "gep": {"public": public, "rank": rank, "clip": rule},
            "rpdp": {"rank": rng.choice([1, 5, 40]), "per_tensor": rng.random() < 0.4, "clip": rule},
            "rpcdp": {"rank": rng.choice([1, 5, 40]), "per_tensor": rng.random() < 0.4, "clip": rule},
            "rsdp": {"rate": rng.choice([0.1, 0.5, 0.9]), "clip": rule},
            "dp-lsgd": {"steps": STEPS, "lr": RATE, "clip": rule},
        }
        if "comp" in name:
            settings[name] = {"constraint": "l1:5", "sketch": rng.choice([None, 2, 6])}
            if name.startswith("dp-"):
                settings[name] |= {"form": rng.choice(list(FORMS.values())), "clip": rule}
        return METHODS[name](**settings[name])

    def one_record_moves_the_sum_by_no_more_than_the_bound(self, method: Method) -> None:
        """Added or taken away, whatever the order and the physical batches on either side."""
        step = Step(self.case, method, self.rng.choice([1e-3, 1.0, 30.0]) if method.private else math.inf)
        variants = self._variants(method.update)
        base, again = step.released(variants["base"]), step.released(variants["again"])
        room = self._room(step, variants["base"])
        apart, what = base.apart(again), method.describe()
        _require(apart <= room, f"{what}: another order moves the sum by {apart:.3g}, rounding by {room:.3g}", Unequal)
        _require(step.released(variants["nobody"]).length == 0, f"{what}: an empty batch has a sum")
        if method.private:
            self._bounded(step, base, step.released(variants["more"]), "added", room)
            self._bounded(step, base, step.released(variants["fewer"]), "taken away", room)
            self._bounded(step, base, step.released(variants["other"]), "exchanged", room, times=2)
        if self.case.broken is None:
            return
        alone = variants["broken"][0]
        if not bool(alone.dense().isfinite().all()):
            weights = step.weights(alone)
            _require(not bool(weights.any()), f"{what}: a broken record weighs {weights.tolist()}")
            apart = base.apart(step.released(variants["with broken"]))
            _require(
                apart <= room, f"{what}: a broken record moves the sum by {apart:.3g}, rounding by {room:.3g}", Unequal
            )

    def _bounded(self, step: Step, base: Released, other: Released, what: str, room: float, times: int = 1) -> None:
        ratio = base.apart(other) / step.bound / times
        by_layer = clips_by_layer(step.method.clip_rule)
        self.tally.moved(ratio, self.case.seed, step.method.name, by_layer)
        most = 1 + ROOM + (room / step.bound if by_layer else 0.0)
        _require(ratio <= most, f"{step.method.describe()}: a record {what} moves the sum by {ratio:.6f} C", Unequal)
        lifted = base.lifted_apart(other) / step.bound / times
        _require(
            lifted <= step.stretch * (most + 5e-3),
            f"{step.method.describe()}: lifted, it moves by {lifted:.6f} C",
            Unequal,
        )

    def one_record_moves_a_trained_model_by_no_more_than_the_bound(self, method: Method) -> None:
        """The same through the Trainer: one step of the full batch, of a step size that shows the sum itself."""
        bound, weights = self.rng.choice([0.1, 1.0]), []
        for records in (self.case.records, join(self.case.records, self.case.neighbour)):
            model = copy.deepcopy(self.case.model)
            trainable = [p for p in model.parameters() if p.requires_grad]
            trainer = Trainer(
                model,
                self.case.loss,
                torch.optim.SGD(trainable, lr=1.0),
                method=method,
                max_grad_norm=bound,
                sampler=FullBatch(),
                expected_batch_size=1,
                noise_multiplier=0.0,
                target_delta=1e-5,
                steps=1,
                max_physical_batch_size=self.rng.choice([None, 1, 2]),
                noise=SeededNoise(self.case.seed),
                example=self.case.public,
                progress=False,
            )
            trainer.fit(records)
            weights.append(torch.cat([p.detach().flatten() for p in trainable]))
        ratio = float((weights[1] - weights[0]).norm()) / bound
        self.tally.moved(ratio, self.case.seed, "trainer", clips_by_layer(method.clip_rule))
        _require(
            ratio <= 1 + 5e-3, f"{method.describe()}: a record added moves a trained model by {ratio:.6f} C", Unequal
        )

    def _room(self, step: Step, physical: Sequence[Updates]) -> float:
        """How far rounding alone may move the sum: the model rounds otherwise in another physical batch.

        Rounding in any part of a record's update is in proportion to its largest part, and is weighed with it.
        """
        total = 0.0
        for updates in physical:
            scales = updates.ceilings_by_parameter().norm(dim=1)
            total += float((step.weights(updates).amax(1) * scales).nan_to_num(0.0, 0.0).sum())
        return (2e-4 if self.single else 1e-8) * step.rounding * total + 1e-12

    def _variants(self, update: Callable[..., Updates]) -> dict[str, list[Updates]]:
        """The updates of the records and of their neighbours, each in physical batches of its own."""
        if update in self.known:
            return self.known[update]
        records, size = self.case.records, len(pytree.tree_leaves(self.case.records)[0])
        batches = {
            "base": self._physical(records),
            "again": self._physical(records),
            "more": self._physical(join(records, self.case.neighbour)),
            "fewer": self._physical(take(records, list(range(1, size)))),
            "other": self._physical(join(take(records, list(range(1, size))), self.case.neighbour)),
            "nobody": [take(records, [])],
        }
        if self.case.broken is not None:
            batches |= {"broken": [self.case.broken], "with broken": self._physical(join(records, self.case.broken))}
        self.known[update] = {
            name: [self.updates(update, part) for part in physical] for name, physical in batches.items()
        }
        return self.known[update]

    def _physical(self, records: Records) -> list[Records]:
        """The records in any order, cut into physical batches of any size."""
        size = len(pytree.tree_leaves(records)[0])
        order = self.rng.sample(range(size), size)
        most = self.rng.choice([1, 2, 3, size + 1, size + 1, size + 1])
        return [take(records, order[start : start + most]) for start in range(0, max(size, 1), most)]


@dataclass(frozen=True)
class Released:
    """The sum that a step would have released, without noise, and what it means for the parameters."""

    coordinates: Tensor
    lifted: Tensor

    @property
    def length(self) -> float:
        return float(self.coordinates.norm())

    def apart(self, other: Released) -> float:
        return float((self.coordinates - other.coordinates).norm())

    def lifted_apart(self, other: Released) -> float:
        return float((self.lifted - other.lifted).norm())


class Step:
    """One step of a method with the noise off, on any records, in one basis."""

    def __init__(self, about: Case, method: Method, bound: float) -> None:
        self.case, self.method, self.bound = about, method, bound
        self.parameters = {name: p.detach() for name, p in about.model.named_parameters() if p.requires_grad}
        context = StepContext(about.model, about.loss, 0, 4, 8, SeededNoise(about.seed))
        self.basis: Basis = method.subspace.basis(context)

    @property
    def stretch(self) -> float:
        """How much longer than its coordinates a lifted vector may be: 1 for orthonormal bases."""
        if isinstance(self.basis, SketchBasis):
            return math.inf  # the transpose of a sketch is no isometry, and comes after the noise
        clip = self.method.clip_rule
        return max(1.0 / scale for scale in getattr(clip, "scales", (1.0,)))

    @property
    def rounding(self) -> float:
        """How much more than the update itself its coordinates may round: small eigenvalues magnify."""
        return 10.0 if self.method.public is not None else 1.0

    def seen(self, updates: Updates) -> Updates:
        return self.method.route.coordinates(self.basis, updates)

    def door(self) -> Door:
        like = self.basis.like if self.method.route.clips_coordinates else self.parameters
        bound = min(self.bound, torch.finfo(torch.float64).max)
        return Door(like, bound, 0.0, 1.0, SeededNoise(0))

    def weights(self, updates: Updates) -> Tensor:
        return self.door().admit(self.seen(updates), self.method.clip_rule).weights

    def released(self, physical: Sequence[Updates]) -> Released:
        door = self.door()
        for updates in physical:
            door.admit(self.seen(updates), self.method.clip_rule)
        found = door.release()
        coordinates = _flat(found)
        route = self.method.route
        sketch = route.sketch(self.basis)
        found = sketch(found) if sketch is not None else route.lifted_coordinates(self.basis, found)
        return Released(coordinates, _flat(self.basis.lift({name: v.to(self.case.dtype) for name, v in found.items()})))


def clips_by_layer(rule: ClipRule) -> bool:
    """Whether a rule can clip one layer's part of an update far more than another's."""
    inner = getattr(rule, "inner", None)
    return isinstance(rule, PerLayer) or (inner is not None and clips_by_layer(inner))


def local_loop(model: nn.Module, loss: Callable[[Any, Any], Tensor], inputs: Any, targets: Any) -> Tensor:
    """The (B, p) matrix of displacements by a copy of the model for each sample."""
    rows = []
    for i in range(len(pytree.tree_leaves(inputs)[0])):
        own = copy.deepcopy(model)
        parameters = [p for p in own.parameters() if p.requires_grad]
        before = [p.detach().clone() for p in parameters]
        one_in, one_out = pytree.tree_map_only(Tensor, lambda t, i=i: t[i : i + 1], (inputs, targets))
        for _ in range(STEPS):
            grads = torch.autograd.grad(loss(call(own, one_in), one_out).sum(), parameters, allow_unused=True)
            with torch.no_grad():
                for p, grad in zip(parameters, grads, strict=True):
                    if grad is not None:
                        p.sub_(RATE * grad)
        rows.append(torch.cat([(p.detach() - b).flatten() for p, b in zip(parameters, before, strict=True)]))
    return torch.stack(rows)


def _flat(vector: dict[str, Tensor]) -> Tensor:
    return torch.cat([value.flatten().double() for value in vector.values()])


def _require(holds: bool, message: str, kind: type[Broken] = Broken) -> None:
    if not holds:
        raise kind(message)
