"""Compilation of Python to machine code by numba, and the cache of machine code.

numba loads what it finds, so it is given a folder where nobody else can write. It looks at the file
of the function that it compiles and not at those that it calls, so the folder's name is a digest of
all sources of a package that compiles.
"""

import functools
import gc
import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

import llvmlite.binding
import numba
from numba.core import caching, types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.registry import CPUDispatcher
from numba.core.targetconfig import TargetConfig
from numba.extending import intrinsic as _intrinsic
from numba.extending import overload as _overload
from numba.np import linalg

from potash_device.vta import compiled_code

# The assembler is for the tiles' inline assembly.
llvmlite.binding.initialize_native_asmparser()

_settings: Any = numba.config


def _values(self: Any) -> dict[str, Any]:
    """A replacement for numba's own method, whose properties take a twelfth of the compile time."""
    return {name: self._values.get(name, option.default) for name, option in self.options.items()}


setattr(TargetConfig, "values", _values)  # noqa: B010 - for mypy, a method


def _no_blas() -> NoReturn:
    raise ImportError("no function here multiplies matrices by BLAS")


# numba looks for SciPy's BLAS when it loads its functions of arrays, which takes thrice as long.
_ensure_blas = linalg.ensure_blas
linalg.ensure_blas = _no_blas
import_module("numba.np.arraymath")
linalg.ensure_blas = _ensure_blas

_Function = TypeVar("_Function", bound=Callable[..., Any])

is_compiling = False
"""True while an entry is compiled that is not in the cache, for commands that show progress."""

Number = Any
"""A machine integer, in compiled code."""
Flag = Any
"""A truth value, in compiled code."""

OPTIONS: Any = {"nogil": True, "boundscheck": False, "error_model": "numpy", "_nrt": False}
"""Nothing waits for the GIL, nothing is checked, and arrays are not counted as references, which
would cost more than a small tile does; so compiled code cannot make arrays either."""


_WITHOUT_WRAPPERS: Any = {**OPTIONS, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
"""Nobody calls the function from Python."""


def entry(function: _Function) -> _Function:
    """A function that Python calls: it is compiled with everything that it calls, at its first
    call.

    The GIL is free while it runs, and nothing is checked in it.
    """
    folder = cache_folder()
    before = _settings.CACHE_DIR
    _settings.CACHE_DIR = str(folder or "")
    try:
        result: _Function = numba.njit(
            cache=folder is not None, pipeline_class=_EntryCompiler, **OPTIONS
        )(function)
    finally:
        _settings.CACHE_DIR = before
    return result


def object_of(function: Callable[..., Any], parameters: int) -> tuple[str, bytes]:
    """A function of machine integers as an object file, and its symbol there: its C type is `int32
    f(int64 *result, void **error, int64...)`."""
    dispatcher: Any = numba.njit(pipeline_class=_EntryCompiler, **_WITHOUT_WRAPPERS)(function)
    signature = (types.int64,) * parameters
    dispatcher.compile(signature)
    found = dispatcher.overloads[signature]
    return found.fndesc.llvm_func_name, found.library._get_compiled_object()


def compiled(function: _Function) -> _Function:
    """A function that compiled functions call. Called from Python, it runs as Python."""
    result: Any = _Part(function, {})
    return cast(_Function, result)


def inlined(function: _Function) -> _Function:
    """Compile a function that is inlined into its callers."""
    result: Any = _Part(function, {"forceinline": True})
    return cast(_Function, result)


def outlined(function: _Function) -> _Function:
    """Compile a function that is not inlined because one is that calls it, as `compiled` ones are:
    numba hands that down, to all that is called."""
    result: Any = _Part(function, {"forceinline": False})
    return cast(_Function, result)


class _PartLibrary(JITCodeLibrary):
    """LLVM code that is optimised and made executable together with the entry that calls it.

    By itself, each function would be: with all that it calls, again and again.
    """

    def _optimize_functions(self, module: Any) -> None:
        pass

    def finalize(self) -> None:
        for library in dict.fromkeys(self._linking_libraries):
            self._final_module.link_in(library._get_module_for_linking(), preserve=True)
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        return 0

    @property
    def codegen(self) -> "_PartLibrary":
        return self

    def set_env(self, *_: object) -> None:
        """An environment is for Python's objects, and there are none."""


class _EntryLibrary(JITCodeLibrary):
    def _optimize_final_module(self) -> None:
        """Optimise once: numba's own method does it twice, to remove more reference counting."""
        passes, builder = self._codegen._module_pass_manager()  # type: ignore[no-untyped-call]
        passes.run(self._final_module, builder)


class _EntryCompiler(Compiler):
    def __init__(self, typing: Any, target: Any, library: Any, *others: Any) -> None:
        if library is None:
            library = _EntryLibrary(target.codegen(), "entry")  # type: ignore[no-untyped-call]
            library.enable_object_caching()
        super().__init__(typing, target, library, *others)  # type: ignore[no-untyped-call]

    def compile_extra(self, function: Any) -> Any:
        """Compile without the garbage collector, which would visit numba's many objects
        repeatedly."""
        global is_compiling
        collects = gc.isenabled()
        gc.disable()
        is_compiling = True
        try:
            return super().compile_extra(function)  # type: ignore[no-untyped-call]
        finally:
            is_compiling = False
            if collects:
                gc.enable()


class _PartCompiler(Compiler):
    def __init__(self, typing: Any, target: Any, library: Any, *others: Any) -> None:
        library = library or _PartLibrary(target.codegen(), "part")  # type: ignore[no-untyped-call]
        super().__init__(typing, target, library, *others)  # type: ignore[no-untyped-call]


_PART: Any = {**_WITHOUT_WRAPPERS, "nopython": True}


class _Part(CPUDispatcher):
    def __init__(self, function: Any, options: Any) -> None:
        super().__init__(function, targetoptions=_PART | options, pipeline_class=_PartCompiler)

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """Treat constants as plain numbers, so that no code is generated for each of them."""
        plain = [types.unliteral(argument) for argument in args]  # type: ignore[no-untyped-call]
        return super().get_call_template(plain, kws)

    def __call__(self, *arguments: Any) -> Any:
        return self.py_func(*arguments)


@compiled
def least(left: Number, right: Number) -> Number:
    """The lesser number. Python's `min` would be compiled and optimised by itself."""
    if left < right:
        return left
    return right


@compiled
def most(left: Number, right: Number) -> Number:
    """The greater number."""
    if left > right:
        return left
    return right


def intrinsic(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose LLVM code the decorated function emits; constants reach it as literals."""
    result: Callable[..., Any] = _intrinsic(prefer_literal=True)(function)
    return result


def emits(
    result: Callable[..., Any] = types.void,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A function of machine integers, whose LLVM code the decorated one emits: it gets the builder
    and the arguments' values, and returns the value of the type `result`, or None."""

    def decorate(emit: Callable[..., Any]) -> Callable[..., Any]:
        def typed(typing: Any, *parameters: Any) -> Any:
            def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
                value = emit(builder, *arguments)
                return context.get_dummy_value() if value is None else value

            return result(*[types.int64] * len(parameters)), generate

        return intrinsic(functools.update_wrapper(typed, emit))

    return decorate


def by_type(choose: _Function) -> _Function:
    """A function of compiled code. The decorated one gets the types of its arguments, and returns
    the implementation for them."""

    def called(*_: object) -> NoReturn:
        raise NotImplementedError("compiled code only")

    result: Any = functools.update_wrapper(called, choose)
    # A strict one would need the same annotations as what it returns.
    options: Any = {**_PART, "pipeline_class": _PartCompiler}
    _overload(result, jit_options=options, strict=False)(choose)
    return cast(_Function, result)


STORE = compiled_code.STORE


@functools.cache
def cache_folder() -> Path | None:
    """The directory of compiled code; None where there is none that belongs to the user alone."""
    folder = STORE.directory()
    if folder is not None:
        try:
            os.utime(folder)
        except OSError:
            _only_read()
    return folder


def _only_read() -> None:
    """Have numba read compiled code from a directory that it cannot write to, and write none."""

    def nothing(*_: object) -> None:
        return

    # numba writes a file to test the directory, and would not use one that is read-only.
    setattr(caching._CacheLocator, "ensure_cache_path", nothing)  # noqa: B010 - for mypy, a method
    setattr(caching.Cache, "save_overload", nothing)  # noqa: B010
