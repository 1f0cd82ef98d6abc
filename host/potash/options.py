"""Options of `potash serve` and `potash guest`: those of the table of settings (`potash.sections`),
and `--config`, whose file they override."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from csd_spec.faults import Fault, FaultFlags, FaultKind
from potash import configuration, toml_kinds
from potash.configuration import Configuration
from potash.namespace_sections import NamespaceSection
from potash.sdk.errors import PotashError, restated
from potash.sdk.faults import describe, read_table
from potash.sections import MODELLED, SECTIONS_OPTIONS


class KeyOption(click.Option):
    """An option that overrides a key of a section; in the section "", whole sections."""

    def __init__(self, names: list[str], *, section: str, key: str, **settings: Any) -> None:
        self.section, self.key = section, key
        super().__init__(names, expose_value=False, callback=self._keep, **settings)

    def _keep(self, ctx: click.Context, _param: click.Parameter, value: Any) -> None:
        """Keep a value that is given, which a default is not."""
        assert self.name is not None
        if ctx.get_parameter_source(self.name) is not ParameterSource.DEFAULT:
            given(ctx).setdefault(self.section, {})[self.key] = value


def given(ctx: click.Context) -> dict[str, dict[str, Any]]:
    """The values of a command's options that override something, by section and key."""
    found: dict[str, dict[str, Any]] = ctx.meta.setdefault(__name__, {})
    return found


def device_options(*, guest: bool) -> list[click.Parameter]:
    """The options of `potash serve`, or those that `potash guest` has of them.

    A command has the parameters `config_file` and `print_config`; `configured` has the others.
    """
    return [
        click.Option(
            ["config_file", "--config"],
            type=click.Path(dir_okay=False, path_type=Path),
            help="Configuration file (potash.toml); other options override it.",
        ),
        click.Option(
            ["--print-config"],
            is_flag=True,
            help="Print the resulting configuration as TOML, and exit.",
        ),
        *(
            KeyOption(key.names.split(), section=section, key=name, **key.option)
            for section, kind in configuration.SECTIONS.items()
            for name, key in toml_kinds.keys(kind).items()
            if key.names and (key.guest if guest else section != "guest")
        ),
        *(
            KeyOption(
                [key, one.flag],
                section="",
                key=key,
                type=one.type,
                multiple=one.multiple,
                help=one.help,
            )
            for key, one in SECTIONS_OPTIONS.items()
            if one.guest or not guest
        ),
    ]


def configured(ctx: click.Context, config_file: Path | None) -> Configuration:
    """The configuration of the one device that a file and the options of a command describe. Raises
    UsageError and PotashError."""
    config = Configuration() if config_file is None else configuration.read(config_file)
    return _overridden(config, dict(given(ctx)))


def configured_drives(ctx: click.Context, config_file: Path | None) -> list[Configuration]:
    """The configurations of drives that a file describes, at least one, with the options of a
    command. Raises UsageError and PotashError."""
    drives = [Configuration()] if config_file is None else configuration.read_drives(config_file)
    return [_overridden(drive, dict(given(ctx))) for drive in drives]


def _overridden(config: Configuration, overrides: dict[str, dict[str, Any]]) -> Configuration:
    several = overrides.pop("", {})
    namespaces = several.get("namespaces", ())
    if "size" in several:
        if namespaces:
            raise click.UsageError("--size is short for --namespace; give one of them")
        namespaces = (NamespaceSection(several["size"]),)
    namespaces = (*namespaces, *several.get("zoned_namespaces", ())) or config.namespaces
    if areas := several.get("zrwa"):
        if not any(namespace.zone_size for namespace in namespaces):
            raise click.UsageError("--zrwa is for --zoned-namespace")
        namespaces = tuple(
            replace(namespace, zrwa=areas) if namespace.zone_size else namespace
            for namespace in namespaces
        )
        with restated(ValueError, "--zrwa", click.UsageError):
            _ = [namespace.shape for namespace in namespaces]
    config = replace(
        config,
        namespaces=namespaces,
        accelerators=several.get("accelerators") or config.accelerators,
        **{name: replace(getattr(config, name), **values) for name, values in overrides.items()},
    )
    if config.time.mode != MODELLED:
        monitors = ["monitor"] if config.time.monitor is not None else []
        for name in (*overrides.get("time", ()), *monitors):
            if name != "mode":
                flag = toml_kinds.keys(config.time)[name].flags.partition("/")[0]
                raise click.UsageError(f"{flag} is for --time {MODELLED}")
    faults = _faults(config.device.faults, config.device.fault_files)
    of_flash = [fault for fault in faults if fault.kind is FaultKind.PROGRAM_FAILURE]
    if of_flash and config.time.mode != MODELLED:
        raise PotashError(f"{describe(of_flash[0])!r} is for --time {MODELLED}")
    return replace(config, device=replace(config.device, faults=faults, fault_files=()))


def _faults(faults: Iterable[Fault], files: Iterable[Path]) -> tuple[Fault, ...]:
    """All faults, with those in files. Raises PotashError for a file that has none."""
    found = list(faults)
    for path in files:
        table = configuration.read_toml(path)
        with restated(PotashError, path):
            found += read_table(table)
    for fault in found:
        if FaultFlags.AT_ONCE in fault.flags:
            raise PotashError(
                f"{describe(fault)!r} is for a device that runs: inject it with potash fault add"
            )
    return tuple(found)


def parse(words: Sequence[str] = (), keywords: Mapping[str, object] = {}) -> Configuration:
    """The configuration of a device with these options of `potash serve`: as on a command line, and
    by keyword, which is the option's name, or the plural of one that can be repeated. Raises
    PotashError for a value that an option does not have."""
    command = click.Command("serve", params=device_options(guest=False), add_help_option=False)
    values = {name: _text(value) for name, value in keywords.items() if value is not None}
    try:
        with command.make_context("serve", list(words), default_map=values) as ctx:
            return configured(ctx, ctx.params["config_file"])
    except click.UsageError as error:
        raise PotashError(error.format_message().removesuffix(".")) from None


def _text(value: object) -> object:
    """A value, as click converts it."""
    if isinstance(value, list | tuple):
        return [_text(one) for one in value]
    return value if isinstance(value, bool | Fault) else str(value)
