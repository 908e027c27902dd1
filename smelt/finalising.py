"""A portable package and a device of the farm -> a bundle for that device, which is kept until one of them
changes.

What a bundle depends on is in the name under which it is kept: the package's hash, smelt's version, target,
options, and the device's fingerprint (devicefarm/capabilities.py). A board with another kernel, driver or
processor gets a bundle of its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smelt import __version__
from smelt.arguments import checked
from smelt.core.bundle import Bundle, read_bundle
from smelt.core.cache import cache_dir
from smelt.core.diag import SmeltError
from smelt.core.package import read_package
from smelt.core.scratch import scratch_folder
from smelt.core.staging import Staging, check_output
from smelt.core.turns import take_turn
from smelt.devicefarm.inventory import find_device
from smelt.driver import finalise
from smelt.leasing import Where, name_of
from smelt.running import running
from smelt.samples import tiny_bundle
from smelt.targets.platform import ALIASES, parse_target

KEPT_FOR_DEVICES = "finalised"
"""The folder, in the cache, of bundles that were made of packages for devices."""
FINALISE_LIMIT = 3600.0
"""Seconds that another process may take to make the same bundle."""


@dataclass(frozen=True)
class Finalised:
    """A bundle that was made for a device. fingerprint: the device's; kept: it was there already."""

    bundle: Bundle
    fingerprint: str
    kept: bool


def finalise_for(
    device: Where,
    package: str | os.PathLike[str],
    output: str | os.PathLike[str] = "out",
    target: str | None = None,
    **options: Any,
) -> Finalised:
    """Make of a package the bundle for a device of the farm, or copy the one that was made before.

    device: None for this machine. target: None for several processors of the device's platform, of which the
    bundle chooses when it is opened; for this machine its own. options: those of `finalise`. Raises as that
    and `running` do.
    """
    check_output(output)
    digest = read_package(package).digest
    asked = target or target_of(find_device(name_of(device) or "local").platform)
    found = fingerprint_of(device, asked)
    full = str(parse_target(asked))
    key = json.dumps([digest, __version__, full, found, _plain(options)], sort_keys=True)
    place = cache_dir() / KEPT_FOR_DEVICES / hashlib.sha256(key.encode()).hexdigest()
    with _alone(place):
        kept = _whole(place)
        if kept is None:
            shutil.rmtree(place, ignore_errors=True)  # in the cache, by a name that nobody else chooses
            return Finalised(_copied(finalise(package, asked, place, **options), output), found, False)
        return Finalised(_copied(kept, output), found, True)


def target_of(platform: str) -> str:
    """The target for a device of this platform: its code for several processors, where there is some."""
    if platform == "host":
        return platform
    return next((a for a, (name, cpus) in ALIASES.items() if name == platform and len(cpus) > 1), platform)


def fingerprint_of(device: Where, target: str) -> str:
    """The device's fingerprint, with its drivers. Raises as `running`."""
    with scratch_folder("finalise") as folder:
        tiny = tiny_bundle(parse_target(target).platform.name, f"{folder}/tiny")
        with running(tiny, device) as client:
            return client.hello(units=True).fingerprint


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """What of the options makes another bundle."""
    about_the_run = ("progress", "time_limit", "memory_limit")
    own = {**options, **checked({"schedules": options.get("schedules")})}  # what is in the file, not its name
    return {k: list(v) if isinstance(v, tuple) else v for k, v in own.items() if k not in about_the_run}


def _whole(place: Path) -> Bundle | None:
    """The bundle that is kept there, if it is as it was written."""
    with contextlib.suppress(SmeltError):
        found = read_bundle(place)
        found.verify()
        return found
    return None


@contextlib.contextmanager
def _alone(place: Path) -> Iterator[None]:
    """One process at a time at what is kept there: a second one waits, and finds what the first has made,
    rather than remove it as damaged, half written or half copied."""
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):  # no locks here; a full disk is told by the bundle
            place.parent.mkdir(parents=True, exist_ok=True)
            lock = held.enter_context(place.with_suffix(".lock").open("ab"))
            take_turn(lock.fileno(), lock.name, FINALISE_LIMIT)
        yield


def _copied(bundle: Bundle, output: str | os.PathLike[str]) -> Bundle:
    with Staging(output) as stage:
        for name in bundle.manifest["files"]:
            shutil.copy(bundle.path / name, stage.path / name)
        return stage.commit({k: v for k, v in bundle.manifest.items() if k not in ("files", "seal")})
