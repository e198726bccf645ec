"""Compressed methods as scikit-learn estimators: linear models on dense or sparse rows, private by default."""

from __future__ import annotations

import dataclasses
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from gnomon import losses
from gnomon.accounting import FullBatch, Poisson, Sampling
from gnomon.constraints import Constraint
from gnomon.data.sparse import CsrRecords
from gnomon.errors import SettingError
from gnomon.methods import FORMS, Form, Method, comp_gd, comp_minibatch, dp_comp_gd, dp_comp_minibatch
from gnomon.models.networks import SparseLinear
from gnomon.release import SecureNoise, SeededNoise
from gnomon.training import Trainer
from gnomon.validate import positive, sample_rate

COUNTED = "counted: the number of records is public here"

READ_OFF = (
    "The number of records was read off the data and is not protected: neighbouring data have as many.",
    "Whatever was done to the data before fit is outside the guarantee: a scaler in a pipeline that learns from them, "
    "settings chosen by a search over them.",
)
"""What the statement of an estimator says beside that of a Trainer."""

CLASSES = "Which classes there are was read off the labels and is not protected."


class _Compressed(BaseEstimator):  # type: ignore[misc]
    """What both estimators share."""

    _losses: dict[str, Any]

    def __init__(
        self,
        constraint: str | Constraint = "l1:10",
        *,
        loss: str,
        epsilon: float | None = 1.0,
        delta: float = 1e-5,
        sketch: int | None = 200,
        form: str | Form = "clip-after-sketch",
        steps: int = 50,
        lr: float = 1.0,
        max_grad_norm: float = 1.0,
        batch_rate: float | None = None,
        fit_intercept: bool = True,
        iterate: str = "average",
        random_state: Any = None,
    ) -> None:
        self.constraint = constraint
        self.loss = loss
        self.epsilon = epsilon
        self.delta = delta
        self.sketch = sketch
        self.form = form
        self.steps = steps
        self.lr = lr
        self.max_grad_norm = max_grad_norm
        self.batch_rate = batch_rate
        self.fit_intercept = fit_intercept
        self.iterate = iterate
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.non_deterministic = self.random_state is None
        return tags

    def _train(self, rows: Any, targets: Tensor, outputs: int, notes: tuple[str, ...] = READ_OFF) -> None:
        if self.loss not in self._losses:
            raise SettingError("loss", self.loss, f"one of {', '.join(self._losses)}")
        if self.iterate not in ("average", "last"):
            raise SettingError("iterate", self.iterate, "'average' or 'last'")
        size, features = rows.shape
        model, data = self._problem(rows, targets, outputs)
        sampler: Sampling = (
            FullBatch() if self.batch_rate is None else Poisson(sample_rate("batch_rate", self.batch_rate))
        )
        noise = SecureNoise() if self.random_state is None else SeededNoise(self._seed())
        trainer = Trainer(
            model,
            self._losses[self.loss],
            torch.optim.SGD(model.parameters(), lr=positive("lr", self.lr)),
            method=self._method(),
            max_grad_norm=self.max_grad_norm,
            sampler=sampler,
            adjacency="zero-out",  # the number of records is public
            expected_batch_size=max(1.0, size * sampler.rate),
            target_epsilon=self.epsilon,
            target_delta=self.delta,
            steps=self.steps,
            noise=noise,
            notes=() if self.epsilon is None else notes,
            progress=False,
        )
        result = trainer.fit(data)
        if result.stopped == "interrupted":  # half a model would pass for a whole one, and a search would go on
            raise KeyboardInterrupt
        weights = next(iter(trainer.final.parameters())).detach().double().numpy()
        weights = weights if isinstance(model, SparseLinear) else weights.T
        weights = weights.T  # (outputs, features)
        self.coef_: NDArray[np.float64] = np.ascontiguousarray(weights[:, :features])
        self.intercept_: NDArray[np.float64] = weights[:, features] if self.fit_intercept else np.zeros(outputs)
        self.n_iter_ = result.steps
        self.epsilon_ = result.epsilon
        self.statement_ = dataclasses.replace(trainer.statement(), divisor=COUNTED)

    def _seed(self) -> int:
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _method(self) -> Method:
        last = self.iterate == "last"
        if self.epsilon is None:
            free = comp_gd if self.batch_rate is None else comp_minibatch
            return free(self.constraint, self.sketch, last)
        form = self.form
        if isinstance(form, str):
            if form not in FORMS:
                raise SettingError("form", form, f"one of {', '.join(FORMS)}")
            form = FORMS[form]
        private = dp_comp_gd if self.batch_rate is None else dp_comp_minibatch
        return private(self.constraint, self.sketch, form, last=last)

    def _problem(self, rows: Any, targets: Tensor, outputs: int) -> tuple[nn.Module, Any]:
        """A linear model that starts at zero, and its records. The intercept is the weight of a column of ones."""
        size, features = rows.shape
        ones = np.ones((size, 1 if self.fit_intercept else 0))
        width = features + ones.shape[1]
        if sparse.issparse(rows):
            table = SparseLinear(width, outputs).double()
            return table, CsrRecords(sparse.hstack([rows, ones], format="csr"), targets, torch.float64)
        layer = nn.Linear(width, outputs, bias=False).double()
        nn.init.zeros_(layer.weight)
        return layer, (torch.from_numpy(np.hstack([rows, ones])), targets)

    def _scores(self, X: Any) -> NDArray[np.float64]:
        check_is_fitted(self)
        rows = validate_data(self, X, accept_sparse="csr", dtype=np.float64, reset=False)
        return np.asarray(rows @ self.coef_.T) + self.intercept_


def _has_probabilities(model: Any) -> bool:
    if model.loss != "log":
        raise AttributeError(f"predict_proba needs loss='log'; loss = {model.loss!r} gives scores only")
    return True


class CompressedClassifier(ClassifierMixin, _Compressed):  # type: ignore[misc]
    """Logistic regression or a linear support vector machine, held to a convex set, trained by DP-CompGD.

    - `constraint`: the set, such as "l1:10" or `L1Ball(10)`; the intercept is part of the vector.
    - `loss`: "log" (multinomial for more than two classes), "hinge" or "huber".
    - `epsilon`, `delta`: the budget for one record, where the number of records is public; `epsilon=None` trains
      without privacy. `max_grad_norm` is the clip bound.
    - `sketch`: directions in which noise is added; None for all. `form`: one of `gnomon.methods.FORMS`.
    - `steps`, `lr`; `batch_rate`: None for all records in every step, else the rate of Poisson batches.
    - `iterate`: "average" of all iterates, or the "last".
    - `random_state`: None for noise that nobody can predict. A number repeats it, and is NOT private.

    How many records and which classes there are is read off `X` and `y` and is not protected. Nor is anything that a
    pipeline or a search learns from the data before `fit`. `statement_` is the privacy statement and says so.

    >>> X, y = np.random.default_rng(0).standard_normal((300, 5)), np.arange(300) % 2
    >>> X[:, 0] += 4 * y
    >>> model = CompressedClassifier("l1:5", sketch=None, epsilon=5.0, random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.8), bool(model.epsilon_ <= 5.0)
    (True, True)
    """

    _losses = {"log": losses.logistic, "hinge": losses.hinge, "huber": losses.huber}  # noqa: RUF012

    def __init__(
        self,
        constraint: str | Constraint = "l1:10",
        *,
        loss: str = "log",
        epsilon: float | None = 1.0,
        delta: float = 1e-5,
        sketch: int | None = 200,
        form: str | Form = "clip-after-sketch",
        steps: int = 50,
        lr: float = 1.0,
        max_grad_norm: float = 1.0,
        batch_rate: float | None = None,
        fit_intercept: bool = True,
        iterate: str = "average",
        random_state: Any = None,
    ) -> None:
        super().__init__(
            constraint, loss=loss, epsilon=epsilon, delta=delta, sketch=sketch, form=form, steps=steps, lr=lr,
            max_grad_norm=max_grad_norm, batch_rate=batch_rate, fit_intercept=fit_intercept, iterate=iterate,
            random_state=random_state,
        )  # fmt: skip

    def fit(self, X: Any, y: Any) -> Self:
        """Train on rows X, dense or sparse, and labels y."""
        rows, y = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64)
        check_classification_targets(y)
        self.classes_, places = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError("y holds 1 class: a classifier needs at least 2 classes")
        self._train(rows, torch.from_numpy(places.astype(np.int64)), self._outputs(), (*READ_OFF, CLASSES))
        return self

    def _outputs(self) -> int:
        """One score for two classes, else one for each."""
        return 1 if len(self.classes_) == 2 else len(self.classes_)

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Scores: (n,) for two classes, else (n, classes)."""
        scores = self._scores(X)
        if self._outputs() > 1:
            return scores
        return scores[:, 0] - (0.5 if self.loss == "huber" else 0.0)  # there 0 and 1 are fitted

    def predict(self, X: Any) -> NDArray[Any]:
        """The class with the highest score."""
        scores = self.decision_function(X)
        best = (scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(1)
        found: NDArray[Any] = self.classes_[best]
        return found

    @available_if(_has_probabilities)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Probabilities; only the loss "log" has them."""
        scores = self.decision_function(X)
        if scores.ndim == 1:
            scores = np.stack([np.zeros_like(scores), scores], 1)
        return torch.from_numpy(scores).softmax(1).numpy()


class CompressedRegressor(RegressorMixin, _Compressed):  # type: ignore[misc]
    """Huber regression, held to a convex set, trained by DP-CompGD. Settings as in `CompressedClassifier`.

    Scale `y` by public numbers to about 1: the loss is linear beyond a distance of 1.

    >>> X = np.random.default_rng(0).standard_normal((400, 3))
    >>> model = CompressedRegressor("l1:3", sketch=None, epsilon=8.0, lr=0.5, random_state=0).fit(X, X[:, 0])
    >>> bool(model.score(X, X[:, 0]) > 0.8)
    True
    """

    _losses = {"huber": losses.huber}  # noqa: RUF012

    def __init__(
        self,
        constraint: str | Constraint = "l1:10",
        *,
        loss: str = "huber",
        epsilon: float | None = 1.0,
        delta: float = 1e-5,
        sketch: int | None = 200,
        form: str | Form = "clip-after-sketch",
        steps: int = 50,
        lr: float = 1.0,
        max_grad_norm: float = 1.0,
        batch_rate: float | None = None,
        fit_intercept: bool = True,
        iterate: str = "average",
        random_state: Any = None,
    ) -> None:
        super().__init__(
            constraint, loss=loss, epsilon=epsilon, delta=delta, sketch=sketch, form=form, steps=steps, lr=lr,
            max_grad_norm=max_grad_norm, batch_rate=batch_rate, fit_intercept=fit_intercept, iterate=iterate,
            random_state=random_state,
        )  # fmt: skip

    def fit(self, X: Any, y: Any) -> Self:
        """Train on rows X, dense or sparse, and numbers y."""
        rows, y = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64, y_numeric=True)
        self._train(rows, torch.from_numpy(np.asarray(y, dtype=np.float64)), 1)
        return self

    def predict(self, X: Any) -> NDArray[np.float64]:
        """The fitted numbers."""
        return self._scores(X)[:, 0]
