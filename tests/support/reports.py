"""Reports of `--json`, held against their schemas."""

from __future__ import annotations

from typing import Any

from jsonschema import Draft202012Validator

from potash.cli.reports import schema


def closed(form: Any) -> Any:
    """The schema with every key forbidden that it does not name."""
    if isinstance(form, list):
        return [closed(one) for one in form]
    if not isinstance(form, dict):
        return form
    more = {"additionalProperties": False} if isinstance(form.get("properties"), dict) else {}
    return {**{key: closed(value) for key, value in form.items()}, **more}


def check(command: str, report: Any) -> None:
    """Raises AssertionError unless the report has the schema's keys, and none that it does not
    name."""
    validator = Draft202012Validator(closed(schema(command)))
    wrong = [f"{error.json_path}: {error.message}" for error in validator.iter_errors(report)]
    assert not wrong, (command, wrong)
