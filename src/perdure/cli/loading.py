"""The user's code: a file, a module, and the application in it.

`shop.py`, `shop` and `package.shop`, each with an optional `:name` of the Perdure object. The directory of a file (or
of its outermost package) goes on sys.path, for a module the working directory does. Whatever goes wrong while loading
is told in one line with the place in the user's code; the cause is kept for --debug.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from msgspec import structs

from perdure.errors import PerdureError, UsageError
from perdure.flows.registry import registry
from perdure.flows.workflow import Workflow
from perdure.runtime.app import Perdure
from perdure.runtime.settings import load as load_settings

_NAME = re.compile(r"[A-Za-z_]\w*")
_NOT_THEIRS = (Path(__file__).parents[1], Path(sysconfig.get_path("stdlib")))


class Broken(UsageError):
    """Code that is there but cannot be loaded, or registers nothing: its author has to mend it."""


class Loaded:
    """A module of the user, and the name of the application object if one was given."""

    def __init__(self, module: ModuleType, spec: str, name: str) -> None:
        self.module = module
        self.spec = spec
        self.name = name

    def application(self) -> Perdure | None:
        """The Perdure object that was named, or the only one there is."""
        if self.name:
            found = getattr(self.module, self.name, None)
            if isinstance(found, Workflow):
                there = f"{self.spec} {self.name}"
                raise UsageError(f"{self.name} of {self.spec} is a workflow: name it behind the module, as in {there}")
            if not isinstance(found, Perdure):
                raise UsageError(f"{self.spec} has no Perdure object {self.name!r}: app = Perdure(…) makes one")
            return found
        ours = {name: value for name, value in vars(self.module).items() if isinstance(value, Perdure)}
        if len({id(value) for value in ours.values()}) > 1:
            raise UsageError(f"{self.spec} has several Perdure objects: name one, as in {self.spec}:{next(iter(ours))}")
        return next(iter(ours.values()), None)


def is_code(spec: str) -> bool:
    """Whether a word names a file or a module, rather than something that was published."""
    path, name = _split(spec)
    if name or path.endswith(".py") or os.sep in path:
        return True
    if not all(map(_NAME.fullmatch, path.split("."))):
        return False
    first = path.partition(".")[0]
    if first in sys.stdlib_module_names:  # of which nobody means the code
        return Path(f"{first}.py").is_file()
    _on_path(Path.cwd())
    return _is_module(path)


def _is_module(path: str) -> bool:
    """Whether there is a module of this name, without importing any: names of documents have dots as well."""
    first, *rest = path.split(".")
    spec = importlib.util.find_spec(first)
    for part in rest:
        if spec is None or spec.submodule_search_locations is None:
            return False
        spec = importlib.machinery.PathFinder.find_spec(part, list(spec.submodule_search_locations))
    return spec is not None


def load(spec: str) -> Loaded:
    """Import what a command names; UsageError when that cannot be."""
    path, name = _split(spec)
    file = Path(path).resolve() if path.endswith(".py") or os.sep in path else None
    if file is not None and not file.is_file():
        raise UsageError(f"there is no file {path}")
    if file is None and not all(map(_NAME.fullmatch, path.split("."))):
        raise UsageError(f"{path!r} is neither a file nor a module: name shop.py or package.shop")
    try:
        return Loaded(_load_file(file) if file is not None else _load_module(path), path, name)
    except SyntaxError as error:
        place = f"{_near(error.filename)}:{error.lineno}"
        raise Broken(f"{place}: {error.msg}: {(error.text or '').strip()}") from error
    except ModuleNotFoundError as error:
        if file is None and f"{path}.".startswith(f"{error.name}."):
            there = f"; did you mean {path}.py?" if Path(f"{path}.py").is_file() else ""
            raise UsageError(f"there is no module {error.name}{there}") from error
        raise Broken(f"{_place(error, file)}: there is no module {error.name}; is it installed?") from error
    except (Exception, SystemExit) as error:
        what = str(error) if isinstance(error, PerdureError) else f"{type(error).__name__}: {error}"
        raise Broken(f"{_place(error, file) or path}: {what}") from error


def application(spec: str | None, **chosen: Any) -> Perdure:
    """The application to work with; `chosen` are settings from the command line (None: not given).

    Where the module has an object of its own, that one is used, so that code which names it means the same store; its
    settings stand, below what was chosen.
    """
    given = {name: value for name, value in chosen.items() if value is not None}
    found = load(spec).application() if spec is not None else None
    if found is None:
        settings = load_settings(**given)
        return Perdure(settings.store, settings=settings)
    # Read by the same rules as the environment, so a wrong value has the same error.
    read = load_settings({}, **given)
    settings = structs.replace(found.settings, **{name: getattr(read, name) for name in given})
    if "store" in given or "stream" in given:
        Perdure.__init__(found, settings.store, settings=settings)
    else:
        Perdure.__init__(found, found.store, stream=found.stream, settings=settings)
    return found


def registered(spec: str) -> None:
    """Something must be there to work with."""
    actions = [one for one in registry.actions() if not one.name.startswith("perdure.")]
    if not registry.definitions() and not actions:
        raise Broken(f"{spec} registers nothing: decorate an `async def` with @workflow, or a function with @action")


def directory(spec: str) -> Path:
    """Where the code lives that a command names."""
    path, _ = _split(spec)
    if path.endswith(".py") or os.sep in path:
        return Path(path).resolve().parent
    file = getattr(sys.modules.get(path), "__file__", None)
    return Path(file).resolve().parent if file else Path.cwd()


def watched(root: Path) -> Iterator[Path]:
    """The files below a directory that were imported."""
    for module in list(sys.modules.values()):
        name = getattr(module, "__file__", None)
        if isinstance(name, str) and name.endswith(".py"):
            path = Path(name)
            if path.is_relative_to(root) and "site-packages" not in path.parts and path.is_file():
                yield path


def _split(spec: str) -> tuple[str, str]:
    path, colon, name = spec.rpartition(":")
    if colon and path and _NAME.fullmatch(name):
        return path, name
    return spec, ""


def _load_file(path: Path) -> ModuleType:
    root, parts = path.parent, [path.stem]
    while (root / "__init__.py").is_file():
        parts.insert(0, root.name)
        root = root.parent
    _on_path(root)
    name = ".".join(parts)
    known = sys.modules.get(name)
    if len(parts) > 1 or (known is not None and _is(known, path)):
        return importlib.import_module(name)
    if known is not None or name in sys.stdlib_module_names:
        name = f"perdure_user_{name}"  # somebody else has its name, as the standard library has `queue`
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _load_module(name: str) -> ModuleType:
    _on_path(Path.cwd())
    return importlib.import_module(name)


def _on_path(directory: Path) -> None:
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))


def _is(module: ModuleType, path: Path) -> bool:
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and Path(file).resolve() == path


def _place(error: BaseException, file: Path | None) -> str:
    """The innermost line of the user's code: below the working directory or beside the file, and not installed."""
    roots = {Path.cwd(), file.parent if file is not None else Path.cwd()}
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        installed = "site-packages" in path.parts or any(path.is_relative_to(root) for root in _NOT_THEIRS)
        if not installed and any(path.is_relative_to(root) for root in roots):
            return f"{_near(path)}:{frame.lineno}"
    return str(file.name) if file is not None else ""


def _near(path: str | Path | None) -> str:
    """Relative to the working directory where that is shorter."""
    if path is None:
        return "?"
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        return str(path)
