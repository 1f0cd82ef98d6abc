"""Prometheus' text format, read strictly by its own document: "Exposition formats", version
0.0.4."""

from __future__ import annotations

import re
from typing import NamedTuple

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\"n])*)"')
SAMPLE = re.compile(rf"({NAME})(?:\{{(.*)\}})? ([-+0-9.eE]+|NaN|[-+]Inf)")


class Family(NamedTuple):
    """A metric: its kind, and its values by their labels."""

    kind: str
    samples: dict[frozenset[tuple[str, str]], float]


def parse(text: str) -> dict[str, Family]:
    """Every metric by its name. Raises AssertionError for what the document does not allow."""
    assert text.endswith("\n")
    found: dict[str, Family] = {}
    name = help_of = ""
    for line in text.splitlines():
        if line.startswith("# HELP "):
            help_of = line.split(" ", 3)[2]
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name == help_of and name not in found, "all lines of a metric are together"
            assert kind in ("counter", "gauge", "histogram")
            assert name.endswith("_total") == (kind == "counter")
            found[name] = Family(kind, {})
        else:
            match = SAMPLE.fullmatch(line)
            assert match is not None, line
            part = match[1].removeprefix(name)
            parts = ("_bucket", "_sum", "_count") if found[name].kind == "histogram" else ("",)
            assert part in parts, line
            samples = found.setdefault(match[1], Family("", {})).samples
            labels = frozenset(_labels(match[2] or ""))
            assert labels not in samples, "a sample is told once"
            samples[labels] = float(match[3])
    return found


def _labels(text: str) -> list[tuple[str, str]]:
    found, at = [], 0
    while at < len(text):
        match = LABEL.match(text, at)
        assert match is not None, text
        value = re.sub(r"\\(.)", lambda one: {"n": "\n"}.get(one[1], one[1]), match[2])
        found.append((match[1], value))
        at = match.end()
        assert at == len(text) or text[at] == ","
        at += 1
    return found


def value(families: dict[str, Family], metric: str, **labels: str) -> float:
    """A sample's value."""
    return families[metric].samples[frozenset(labels.items())]
