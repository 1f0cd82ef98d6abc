"""Loading of extensions (`potash_firmware.extensions`)."""

import difflib
import sys
from collections.abc import Iterable
from contextlib import redirect_stdout
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from itertools import count
from pathlib import Path
from typing import NoReturn

from potash_firmware import extension_limits, extensions, native_programs
from potash_firmware.extension_limits import ExtensionError, is_file, limited, why
from potash_firmware.extension_registry import Extensions
from potash_firmware.extensions import register_program

GROUP = "potash.extensions"
"""The group of entry points by which packages provide extensions: a name, and a module."""


class _NoPackage(ExtensionError):
    """No package has an extension of that name."""


_numbers = count()


def load(sources: Iterable[str]) -> Extensions:
    """Import extensions: paths of Python files, or names of the entry points of packages. Raises
    ExtensionError, with the file and the line."""
    before, made = extensions.loading, Extensions()
    extensions.loading = made
    try:
        for source in sources:
            made.sources = (*made.sources, source)
            if native := native_programs.source_of(source):
                register_program(native_programs.load(native))
                continue
            if is_file(source) and not Path(source).is_file():
                raise ExtensionError(f"there is no file {source}")
            try:
                limited(extension_limits.IMPORT_LIMIT, _import, source)
            except _NoPackage as error:
                raise ExtensionError(str(error)) from None
            except BaseException as error:  # noqa: BLE001 - it is a user's code
                file = str(Path(source).absolute()) if is_file(source) else ""
                what = "" if file else f"the extension {source}: "
                raise ExtensionError(what + why(error, file)) from None
    finally:
        extensions.loading = before
    if made.operators:
        from potash_firmware.tflite.operators import check_names  # NumPy

        try:
            check_names(made.operators)
        except ValueError as error:
            raise ExtensionError(str(error)) from None
    return made


class SourceLoader(SourceFileLoader):
    """A loader of a file as it is: Python would take its bytecode of before for it where it was
    changed within the same second and has the same size."""

    def path_stats(self, path: str) -> NoReturn:
        """No stats, so that no bytecode is read or written (`importlib.abc.SourceLoader`)."""
        raise OSError(f"the bytecode of {path} is not kept")


def _import(source: str) -> None:
    if not is_file(source):
        from importlib import metadata  # takes longer than all else here

        points = metadata.entry_points(group=GROUP, name=source)
        if not points:
            near = difflib.get_close_matches(source, metadata.entry_points(group=GROUP).names, 1)
            beside = Path(f"{source}.py")
            near = [str(beside)] if beside.is_file() else near
            meant = f"; did you mean {near[0]}?" if near else ""
            raise _NoPackage(f"no installed package has an extension {source!r}{meant}")
        for point in points:
            for name in list(sys.modules):  # they register while they are imported
                if f"{name}.".startswith(f"{point.module}."):
                    del sys.modules[name]
            point.load()
        return
    path = Path(source).absolute()
    loader = SourceLoader(f"potash_extension_{next(_numbers)}_{path.stem}", str(path))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = sys.modules[loader.name] = module_from_spec(spec)
    sys.path.append(str(path.parent))  # for modules beside it
    try:
        with redirect_stdout(sys.stderr):  # the device's report is on standard output
            loader.exec_module(module)
    finally:
        sys.path.pop()
