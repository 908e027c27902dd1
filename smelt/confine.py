"""A request in; this process confined to the files that it needs out, and errors about what is refused."""

from __future__ import annotations

import errno
import itertools
import os
import resource
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import smelt
from smelt.core.cache import cache_dir
from smelt.core.diag import SmeltError
from smelt.core.ir.dump import DUMP_SUFFIX
from smelt.core.staging import Staging
from smelt.limits import CONFINE
from smelt.plugin import named_plugins
from smelt.request import Request
from smelt.sandbox import READ, REMOVE_DIR, RUN, WRITE, WRITE_FILE, enter
from smelt.targets.platform import zig_directory

SYSTEM: Mapping[str, int] = {
    **dict.fromkeys(("bin", "gnu", "lib", "lib32", "lib64", "libx32", "nix", "opt", "sbin", "usr"), RUN),
    **dict.fromkeys(("etc", "proc", "sys"), READ),
    **dict.fromkeys(("dev/full", "dev/random", "dev/urandom", "dev/zero"), READ),
    "home/linuxbrew": RUN,
    "dev/null": READ | WRITE_FILE,
}
"""Paths of the system and their rights: programs, libraries, settings. Of the devices only those that hold
nobody's data."""

MOST_LISTED = 1000
"""How many entries of a model's folder are looked at: 1 to 2 ms."""


def confine(request: Request, scratch: Path, stage: Staging | None) -> None:
    """Confine this process, which has one thread, to what the request needs. scratch: the folder of all its
    temporary files. stage: that of the bundle; beside it only empty folders may be removed."""
    os.environ["TMPDIR"] = tempfile.tempdir = str(scratch)
    rules = {**_reads(request), str(scratch): WRITE}
    if not request.plan_only:
        kept, is_dump = cache_dir(), request.source.endswith(DUMP_SUFFIX)
        if is_dump:  # it says itself what it is for, so what is kept for that target is made after it is read
            _make(kept, "the cache folder, SMELT_CACHE")
        rules[str(kept)] = WRITE if is_dump else READ
    if stage is not None:
        there = str(stage.there)
        rules |= {there: rules.get(there, 0) | REMOVE_DIR, str(stage.path): WRITE}
    if dumps := os.environ.get("SMELT_DUMP"):
        _make(dumps, "the folder of dumps, SMELT_DUMP")
        rules[dumps] = WRITE
    enter(rules)


def _make(folder: str | Path, what: str) -> None:
    """Make a folder unless it is there. Raises SmeltError(kind='infra')."""
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as e:
        raise SmeltError(
            f"{what}: '{folder}' cannot be made: {e.strerror or e}", kind="infra", hint="name another folder"
        ) from None


def _reads(request: Request) -> dict[str, int]:
    """Path -> the rights of what is only read, or run."""
    rules = {f"/{path}": rights for path, rights in SYSTEM.items()}
    libraries = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    rules |= dict.fromkeys((*installed(), *sys.path, *filter(None, libraries)), RUN)
    plugins = [n for n in named_plugins(request.plugins) if n.endswith(".py")]
    for file in (*models(request), *plugins):
        for folder in folders(file):
            rules.setdefault(folder, READ)
    return rules


def models(request: Request) -> tuple[str, ...]:
    """The files of the request's models."""
    return tuple(path for _, path in request.entries) or (request.source,)


def folders(file: str) -> tuple[str, ...]:
    """The folder of a file, and that of the file which it links to: a cache of downloads keeps models, and
    their external data, as links into one folder."""
    return tuple(dict.fromkeys((os.path.dirname(file) or ".", os.path.dirname(os.path.realpath(file)))))


@cache
def installed() -> tuple[str, ...]:
    """The folders of this Python and of the packages that are loaded, zig's among them, with their links
    followed."""
    packages = [m for name, m in sorted(sys.modules.items()) if "." not in name or name.startswith("smelt.")]
    inside = [path for m in packages for path in getattr(m, "__path__", ())]
    linked = [e.path for path in smelt.__path__ for e in os.scandir(path) if e.is_symlink()]  # in a checkout
    bases = (sys.prefix, sys.base_prefix, sys.exec_prefix, os.path.dirname(sys.executable), zig_directory())
    kept: list[str] = []
    for path in sorted({os.path.realpath(p) for p in (*bases, *inside, *linked)}):
        if not kept or not f"{path}/".startswith(f"{kept[-1]}/"):
            kept.append(path)
    return tuple(kept)


def largest_file(request: Request) -> int:
    """The most bytes of a file that a compile may write: enough for weights of 4 bits that become float32 in
    two layouts, and for dumps. What the folders of the models hold counts as their weights."""
    return 16 * sum(_held({f for model in models(request) for f in folders(model)})) + (8 << 30)


def _held(names: Iterable[str]) -> Iterator[int]:
    """The bytes of the files in folders and their own folders, links followed; the used bytes of the disk for
    a folder with more than MOST_LISTED, or with some that cannot be read."""
    for name in names:
        total, seen, waiting = 0, 0, [name]
        try:
            while waiting and seen <= MOST_LISTED:
                found = list(itertools.islice(os.scandir(waiting.pop()), MOST_LISTED + 1))
                waiting += [e.path for e in found if e.is_dir(follow_symlinks=False)]
                total += sum(e.stat().st_size for e in found if e.is_file())
                seen += len(found)
        except OSError:
            seen = MOST_LISTED + 1
        if seen > MOST_LISTED:
            disk = os.statvfs(name)
            total = (disk.f_blocks - disk.f_bfree) * disk.f_frsize
        yield total


# ---------------------------------------------------------------- errors


SAID = ("AccessDenied", "PermissionDenied", "Permission denied")
"""What zig says of an access that is refused."""
TOO_LARGE = ("File too large", "FileTooBig")
"""And of a file beyond its limit."""
_LARGER = f"raise the limit of the shell (ulimit -f), or lift the compile's own with {CONFINE}=0"


def refusal(error: BaseException | None) -> SmeltError | None:
    """The error of a compile that was refused something by its confinement, or by a limit; None for another
    error."""
    hint = f"{CONFINE}=0 compiles without; docs/safety.md says what a compile may do"
    seen: list[BaseException] = []
    at = error
    while at is not None and at not in seen:
        if isinstance(at, OSError) and (what := _refused(at)):
            return SmeltError(what, kind="infra", hint=_LARGER if at.errno == errno.EFBIG else hint)
        seen.append(at)
        at = at.__cause__ or (None if at.__suppress_context__ else at.__context__)
    text = error.message if isinstance(error, SmeltError) else ""
    if text.startswith("zig ") and any(word in text for word in TOO_LARGE):
        return SmeltError(text, kind="infra", hint=_LARGER)
    if text.startswith("zig ") and any(word in text for word in SAID):
        return SmeltError(text, kind="infra", hint=hint)
    return None


def _refused(e: OSError) -> str:
    if e.errno == errno.EFBIG:
        most, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        return f"a file of the compile would exceed its limit of {most:,} bytes"
    if e.errno == errno.EAGAIN:
        return "the compile may start no more processes or threads: its limit, or the system's, is reached"
    if e.errno not in (errno.EACCES, errno.EXDEV):
        return ""
    if not isinstance(e.filename, str | bytes):
        return f"the compile was refused what it may not do, such as to use the network ({e.strerror})"
    path = Path(os.path.abspath(os.fsdecode(e.filename)))
    asked = os.R_OK if path.exists() else os.W_OK
    # Landlock is not asked by access(2): where that says yes, it was Landlock that said no
    if not os.access(path if path.exists() else path.parent, asked):
        return ""
    return f"the compile may not use '{path}': it reads its model and writes its output alone"
