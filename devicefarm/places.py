"""The environment -> where this user's farm is kept: its database, its rules and the host's fence files.

Nothing here imports SQLAlchemy, which a run on this machine alone does not need.
"""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path

from smelt.core.diag import SmeltError
from smelt.devicefarm.claim import FenceFile
from smelt.devicefarm.leases.order import LeaseRules

FARM, RULES, HOLDER = "SMELT_FARM", "SMELT_FARM_RULES", "SMELT_HOLDER"


def state_dir() -> Path:
    """$XDG_STATE_HOME/smelt or ~/.local/state/smelt, absolute. Raises SmeltError for a user without a
    home."""
    try:
        base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    except RuntimeError:
        raise SmeltError(
            "this user has no home folder in which smelt could keep leases", kind="infra",
            hint=f"name a database with {FARM}, and a folder with XDG_STATE_HOME",
        ) from None  # fmt: skip
    return Path(base).absolute() / "smelt"


def farm_url() -> str:
    """The URL of the database: $SMELT_FARM (a URL or the path of a SQLite file), else farm.db in the state
    folder."""
    named = os.environ.get(FARM)
    if named and "://" in named:
        return named
    return f"sqlite:///{Path(named).absolute() if named else state_dir() / 'farm.db'}"


def farm_exists() -> bool:
    """Whether there is a farm already: a database is named, or the default file is there."""
    return bool(os.environ.get(FARM)) or os.path.exists(state_dir() / "farm.db")


def farm_rules() -> LeaseRules:
    """$SMELT_FARM_RULES, such as 'lease=10,cap=2', over the defaults. Raises SmeltError for another form."""
    known = {f.name: int if f.name == "cap" else float for f in fields(LeaseRules)}
    values: dict[str, float] = {}
    for word in filter(None, os.environ.get(RULES, "").split(",")):
        name, _, number = word.partition("=")
        try:
            values[name.strip()] = known[name.strip()](number)
        except (KeyError, ValueError):
            raise SmeltError(f"{RULES}: '{word}' is no rule", hint=f"rules are {', '.join(known)}") from None
    if any(not 0 <= v < 1e9 for v in values.values()) or not values.get("lease", 1) > 0:
        raise SmeltError(f"{RULES}: numbers are from 0 to 1e9, and a lease lasts")
    return LeaseRules(**values)  # type: ignore[arg-type]


def host_fence(device: str) -> FenceFile:
    """The file in which this host keeps the newest fence of a device."""
    return FenceFile(state_dir() / "fences" / device)
