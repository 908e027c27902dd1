"""The URL of a farm's database in; it is empty."""

from __future__ import annotations

from smelt.devicefarm.leases.database import _engine
from smelt.devicefarm.leases.tables import METADATA


def clear(url: str) -> None:
    """Remove all tables."""
    engine = _engine(url)
    METADATA.drop_all(engine)
    engine.dispose()
