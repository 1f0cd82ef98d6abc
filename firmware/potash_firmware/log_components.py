"""The log of the device, component by component: levels by component, as text or as JSON.

Every module has a logger with its package's name, as is usual for the standard library's loggers; a
component is a group of packages. The device passes its settings to its other processes, so that an
option applies to all of them.
"""

import json
import logging
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from csd_spec.text import plain, plain_lines
from potash_wire.records import Number, Range, pairs_of

COMPONENTS: Mapping[str, tuple[str, ...]] = {
    "board": ("potash_device", "pyvfio_user"),
    "media": ("potash_device.media",),
    "vta": ("potash_device.vta", "potash_firmware.vta_runtime"),
    "boot": ("potash_firmware",),
    "rpu": ("potash_firmware.rpu",),
    "mailbox": ("potash_firmware.mailbox",),
    "apu": ("potash_firmware.apu",),
    "bpf": ("potash_firmware.bpf",),
    "tflite": ("potash_firmware.tflite",),
    "host": ("potash",),
}
"""Components, and the packages whose loggers are theirs; where two match, the longer name
counts."""

Word = Annotated[str, Number("B"), Range(0, 255)]

LEVELS = ("debug", "info", "warning", "error")
DEFAULT_LEVEL = "info"
TEXT, JSON = "text", "json"
FORMATS = (TEXT, JSON)

_COMPONENT_OF = {
    package: component for component, packages in COMPONENTS.items() for package in packages
}


def component_of(logger: str) -> str:
    """The component that a logger belongs to; its own name where it is nobody's."""
    name = logger
    while name:
        if name in _COMPONENT_OF:
            return _COMPONENT_OF[name]
        name = name.rpartition(".")[0]
    return logger


@dataclass(frozen=True)
class LogSettings:
    """Levels and format of the components' logs.

    `level` is that of components which `components` does not name. Raises ValueError for a
    component, a level or a format that does not exist.
    """

    level: Word = DEFAULT_LEVEL
    components: Annotated[Mapping[str, str], Number("H"), Range(0, 1 << 12), pairs_of(str)] = field(
        default_factory=dict
    )
    format: Word = TEXT

    def __post_init__(self) -> None:
        for component in self.components:
            if component not in COMPONENTS:
                raise ValueError(
                    f"there is no component {component!r}; there are {', '.join(COMPONENTS)}"
                )
        for level in (self.level, *self.components.values()):
            if level not in LEVELS:
                raise ValueError(f"there is no level {level!r}; there are {', '.join(LEVELS)}")
        if self.format not in FORMATS:
            raise ValueError(f"there is no format {self.format!r}; there are {', '.join(FORMATS)}")

    def apply(self, process: str) -> None:
        """Have this process, which is called so, log to standard error as the settings say."""
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(_FORMATTERS[self.format](process))
        logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
        for component, packages in COMPONENTS.items():
            for package in packages:
                logging.getLogger(package).setLevel(
                    self.components.get(component, self.level).upper()
                )


class TextLines(logging.Formatter):
    """One line for people: the time, the level, the component, and what there is to say."""

    def __init__(self, process: str) -> None:
        super().__init__("%(clock)s %(levelword)s %(component)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        record.clock = f"{clock}.{int(record.msecs):03}"
        record.levelword = record.levelname.lower()
        record.component = component_of(record.name)
        return plain_lines(super().format(record))

    def formatMessage(self, record: logging.LogRecord) -> str:
        return plain(super().formatMessage(record))


class JsonObjects(logging.Formatter):
    """One JSON object a line. What a record was given as `known` stands in it by its own names."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        said: dict[str, object] = {
            "time": record.created,
            "level": record.levelname.lower(),
            "component": component_of(record.name),
            "process": self._process,
            "pid": os.getpid(),
            "message": record.getMessage(),
        }
        if record.exc_info:
            said["exception"] = self.formatException(record.exc_info)
        known = getattr(record, "known", {})
        return json.dumps({**known, **said}, default=str)


_FORMATTERS: Mapping[str, type[TextLines | JsonObjects]] = {TEXT: TextLines, JSON: JsonObjects}
