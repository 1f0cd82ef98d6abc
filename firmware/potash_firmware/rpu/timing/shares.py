"""Shares of DRAM and link, as in `host=3,jobs=1,accelerator0=2,namespace3=1`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

LARGEST_WEIGHT = 1000
_FORM = re.compile(r"(host|jobs|(accelerator|namespace)([0-9]{1,9}))=([0-9]{1,4})")


class SharesError(ValueError):
    """No shares; one sentence."""


@dataclass(frozen=True)
class Shares:
    """Weights of flows that share DRAM and link."""

    host: int = 1
    """Weight of all commands of the host together."""
    jobs: int = 1
    """Weight of the jobs of each accelerator, and of the executions of each compute namespace."""
    others: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """Other weights, by "accelerator" or "namespace" and its identifier."""

    def of(self, kind: str, number: int) -> int:
        """The weight of an accelerator's jobs, or of a compute namespace's executions."""
        return self.others.get((kind, number), self.jobs)

    def __str__(self) -> str:
        others = [f"{kind}{number}={weight}" for (kind, number), weight in self.others.items()]
        return ",".join([f"host={self.host}", f"jobs={self.jobs}", *others])


def parsed(text: str) -> Shares:
    """The shares in a text. Raises SharesError."""
    weights: dict[str, int] = {}
    others: dict[tuple[str, int], int] = {}
    for part in text.split(","):
        found = _FORM.fullmatch(part)
        if found is None or not 0 < (weight := int(found[4])) <= LARGEST_WEIGHT:
            raise SharesError(
                f"{part!r:.40} is no share; write host, jobs, acceleratorN or namespaceN and a"
                f" number from 1 to {LARGEST_WEIGHT}, as in host=3,jobs=1"
            )
        name, kind, number = found[1], found[2], found[3]
        if name in weights or (kind, int(number or 0)) in others:
            raise SharesError(f"{name} has two shares")
        if kind is None:
            weights[name] = weight
        else:
            others[kind, int(number)] = weight
    return Shares(**weights, others=others)
