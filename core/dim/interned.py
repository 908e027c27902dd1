"""A key -> the one living object of that key: the tables in which equal Dims, and atoms, are one object.

An object stays as long as somebody holds it, and the NEWEST of a table stay anyway: proofs make the same few
formulas again and again, and drop them in between. Entries of what is gone are swept once they may be as
many as the others. A plain dict of plain weak references is several times faster than a WeakValueDictionary,
which takes six calls to add an object and one more when it goes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Final, Generic, TypeVar
from weakref import ref

from smelt.core.forksafe import ForkSafe

KeyT = TypeVar("KeyT", bound=Hashable)
MadeT = TypeVar("MadeT")

NEWEST: Final = 2048
"""Of 217,000 Dims that ppocrv4_det made, 39,000 were different ones: with 1,024 kept it makes 52,000, with
16,384 it makes 41,000 (counted while it was compiled for x86-64-v4)."""

FIRST_SWEEP: Final = 8192
"""Entries without a sweep."""

LOCK: Final = ForkSafe()
"""Taken only to add to a table."""


class Interned(Generic[KeyT, MadeT]):
    """refs: by key, also of objects that are gone. To look one up, call what `refs.get(key)` gives: None, or
    the object, or None again where it is gone. Any thread may, without a lock."""

    def __init__(self) -> None:
        self.refs: dict[KeyT, ref[MadeT]] = {}
        self._newest: deque[MadeT] = deque(maxlen=NEWEST)
        self._limit = FIRST_SWEEP

    def add(self, key: KeyT, made: MadeT) -> MadeT:
        """The object of this key: the one made now, unless another thread was faster."""
        with LOCK.lock:
            known = self.refs.get(key)
            found = None if known is None else known()
            if found is not None:
                return found
            self.refs[key] = ref(made)
            self._newest.append(made)
            if len(self.refs) > self._limit:
                self._sweep()
            return made

    def _sweep(self) -> None:
        for key in [k for k, r in tuple(self.refs.items()) if r() is None]:
            del self.refs[key]
        self._limit = max(FIRST_SWEEP, 2 * len(self.refs))
