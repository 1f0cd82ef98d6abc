"""The form of every report that `--json` makes, as JSON Schema (draft 2020-12).

`docs/json.md` is generated from them. Reports may gain keys; what a schema requires stays.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any

SCHEMAS: Mapping[str, str] = {
    "acc identify": "accelerators",
    "acc log": "accelerator-log",
    "acc read": "accelerator-read",
    "acc start": "accelerator-status",
    "acc status": "accelerator-status",
    "acc wait": "accelerator-status",
    "acc write": "accelerator-write",
    "bench bpf": "bench",
    "bench model": "bench",
    "bench nvme": "bench",
    "bench vta": "bench",
    "bpf disasm": "bpf-disasm",
    "bpf exec": "bpf-exec",
    "bpf helpers": "bpf-helpers",
    "build": "build",
    "demo list": "demo-list",
    "demo run": "demo",
    "doctor": "doctor",
    "fault add": "fault-add",
    "fault list": "faults",
    "fw read": "firmware-read",
    "fw send": "firmware-send",
    "model import": "model-import",
    "model info": "model-info",
    "model list": "model-list",
    "model make": "model-make",
    "model quantize": "model-quantize",
    "model run": "model-run",
    "run": "run",
    "serve": "serve",
    "sweep": "sweep",
    "top": "top",
    "trace": "trace",
    "vta asm": "vta-asm",
    "vta disasm": "vta-disasm",
    "vta info": "vta-info",
    "vta roofline": "vta-roofline",
    "vta run": "vta-run",
    "vta time": "vta-time",
    "vta trace": "vta-trace",
}
"""The schema of each command's report."""

INTRODUCTION = """\
# Reports as JSON

Every command that reports has `--json`: one JSON document on standard output, and on standard error
where standard output has the command's output. An error is a sentence on standard error as always, with
exit code 1, and no document.

The forms are stated in [JSON Schema](https://json-schema.org/draft/2020-12), a file each in
`host/potash/schemas`, which is in the package too: `potash.schemas.schema("run")`. A later version may add
keys; what is required stays, and so does what it means.

This page is made from them (`make docs-page`).
"""

Schema = Mapping[str, Any]


def schema(name: str) -> dict[str, Any]:
    """A schema by its name. Raises FileNotFoundError where there is none."""
    text = resources.files(__name__).joinpath(f"{name}.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def page() -> str:
    """The documentation of all, as Markdown."""
    parts = [INTRODUCTION]
    for name in dict.fromkeys(SCHEMAS.values()):
        commands = [f"`potash {one}`" for one, named in SCHEMAS.items() if named == name]
        found = schema(name)
        parts.append(f"## {', '.join(commands)}\n\n{found['description']}\n")
        for form in found.get("oneOf", [found]):
            if "oneOf" in found:
                parts.append(f"{form['description']}:\n")
            rows = [f"| `{path}` | {kind} | {said} |" for path, kind, said in _rows(form, "")]
            parts.append("\n".join(["| key | type | what |", "|---|---|---|", *rows]) + "\n")
        parts.append(f"Schema: `{name}.json`.\n")
    return "\n".join(parts)


def _rows(form: Schema, prefix: str) -> Iterator[tuple[str, str, str]]:
    """Path, type and meaning of each key, those below it after it."""
    required = form.get("required", ())
    for name, one in form.get("properties", {}).items():
        path = f"{prefix}{name}"
        absent = "" if name in required else " It may not be there."
        said = one["description"].replace("|", "\\|") + absent
        if "enum" in one and all(f"{value}" not in said for value in one["enum"]):
            said += f" One of {', '.join(f'`{value}`' for value in one['enum'])}."
        yield path, _kind(one), said
        yield from _below(one, path)


def _below(one: Schema, path: str) -> Iterator[tuple[str, str, str]]:
    if "properties" in one:
        yield from _rows(one, f"{path}.")
    if "properties" in one.get("items", {}):
        yield from _rows(one["items"], f"{path}[].")
    further = one.get("additionalProperties")
    if isinstance(further, dict) and "properties" in further:
        yield from _rows(further, f"{path}.*.")


def _kind(one: Schema) -> str:
    kinds = [one["type"]] if isinstance(one["type"], str) else list(one["type"])
    if "items" in one:
        kinds[kinds.index("array")] = f"array of {one['items']['type']}"
    return " or ".join(kinds)
