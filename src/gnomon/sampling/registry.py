"""The registry of sampling schemes, by their names in files, on the command line and in privacy statements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gnomon.errors import SettingError
from gnomon.sampling.fixed_size import FixedSize
from gnomon.sampling.full_batch import FullBatch
from gnomon.sampling.poisson import Poisson
from gnomon.sampling.scheme import Sampling
from gnomon.sampling.shuffled import Shuffled
from gnomon.sampling.truncated_poisson import TruncatedPoisson

SCHEMES: dict[str, type[Sampling]] = {
    scheme.kind: scheme for scheme in (Poisson, TruncatedPoisson, Shuffled, FullBatch, FixedSize)
}
"""Every sampling scheme by its `kind`. To add a scheme, write its class and add it here."""

FLAGS: dict[str, type[Sampling]] = {scheme.flag: scheme for scheme in SCHEMES.values()}
"""The same schemes by their names on the command line."""


def is_registered(sampler: Sampling) -> bool:
    """Return whether a scheme is of a registered class itself, not of a subclass, which may draw differently.

    >>> is_registered(Shuffled(40)), is_registered(type("Own", (Poisson,), {})(0.1))
    (True, False)
    """
    return SCHEMES.get(getattr(sampler, "kind", "")) is type(sampler)


def scheme_to_dict(sampler: Sampling) -> dict[str, Any]:
    """Return a registered scheme as plain values for JSON.

    Raises:
        SettingError: The class of the sampler is not registered. A subclass of a registered scheme may draw
            differently, so it must not be written under the name of its parent.

    >>> scheme_to_dict(Shuffled(40))
    {'kind': 'shuffled', 'steps_per_epoch': 40}
    """
    if not is_registered(sampler):
        raise SettingError("sampler", type(sampler).__name__, f"a registered scheme: {', '.join(SCHEMES)}")
    return sampler.to_dict()


def scheme_from_dict(values: Mapping[str, Any]) -> Sampling:
    """Return the scheme that `scheme_to_dict` described; its class validates every value again.

    Raises:
        SettingError: The kind is unknown, or the values are not the fields of this kind of scheme.

    >>> scheme_from_dict({"kind": "shuffled", "steps_per_epoch": 40})
    Shuffled(steps_per_epoch=40)
    """
    fields = dict(values)
    kind = fields.pop("kind", None)
    if kind not in SCHEMES:
        raise SettingError("sampler", kind, " or ".join(map(repr, SCHEMES)))
    try:
        return SCHEMES[kind](**fields)
    except TypeError as error:
        raise SettingError("sampler", dict(values), f"the fields of a scheme of kind {kind!r} ({error})") from error


def scheme_from_name(name: str) -> Sampling | None:
    """Return the scheme whose `name` is in a privacy statement, or None if no registered scheme has such a name.

    >>> scheme_from_name("full batch"), scheme_from_name("3 settings")
    (FullBatch(), None)
    """
    return next((scheme for kind in SCHEMES.values() if (scheme := kind.from_name(name)) is not None), None)
