"""`docs/json.md`, from the types of the commands' reports."""

from collections.abc import Iterator, Mapping
from typing import Any

from potash.cli.reports import reports
from potash.schema import schema

INTRODUCTION = """\
# Reports as JSON

Every command that prints a report has `--json`. It then prints one JSON document on standard
output, or on standard error if its other output goes to standard output. An error is, as always, a
sentence on standard error with exit code 1, without a document.

Each report has a [JSON Schema](https://json-schema.org/draft/2020-12), derived from its type in the
source: `potash.cli.reports.schema("run")`. Later versions may add keys; required keys and their
meaning stay.

This page is generated from the same types (`make docs-page`).
"""


def page() -> str:
    """The documentation of all reports, as Markdown."""
    found = reports()
    parts = [INTRODUCTION]
    for report in dict.fromkeys(found.values()):
        first, *others = (f"potash {one}" for one, of_it in found.items() if of_it == report)
        group = first.rpartition(" ")[0] + " "
        commands = [first, *(one.removeprefix(group) for one in others)]
        parts.append(f"## {', '.join(f'`{one}`' for one in commands)}\n")
        form = schema(report)
        for one in form.get("oneOf", [form]):
            rows = [f"| `{path}` | {kind} | {said} |" for path, kind, said in _rows(one, "")]
            table = "\n".join(["| key | type | meaning |", "|---|---|---|", *rows])
            parts.append(f"{one['description']}\n\n{table}\n")
    return "\n".join(parts)


def _rows(form: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str, str]]:
    """Path, type and meaning of each key, those below it after it."""
    for name, one in form["properties"].items():
        path = f"{prefix}{name}"
        said = one["description"].replace("|", "\\|")
        if "enum" in one and all(f"{value}" not in said for value in one["enum"]):
            said += f" One of {', '.join(f'`{value}`' for value in one['enum'])}."
        yield path, _kind(one), said + ("" if name in form["required"] else " Optional.")
        items, further = one.get("items", {}), one.get("additionalProperties", {})
        for below, behind in ((one, "."), (items, "[]."), (further, ".*.")):
            if "properties" in below:
                yield from _rows(below, f"{path}{behind}")


def _kind(one: Mapping[str, Any]) -> str:
    kinds = [one["type"]] if isinstance(one["type"], str) else list(one["type"])
    if "items" in one:
        kinds[kinds.index("array")] = f"array of {_kind(one['items'])}"
    return " or ".join(kinds)
