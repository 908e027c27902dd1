"""Named arrays <-> an .npz file, whatever their names and element types are."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smelt.core.diag import SmeltError
from smelt.core.dtype import Array
from smelt.core.lazily import Lazily

if TYPE_CHECKING:
    import numpy as np
else:
    np = Lazily("numpy")


def write_npz(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write arrays as NumPy does; strings as NumPy's own type. Any name is possible, 'file' too, which
    numpy.savez takes for its own argument. Raises SmeltError(kind='infra')."""
    try:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
            for name, a in arrays.items():
                plain = np.asarray(a.astype(str) if a.dtype == object else a)
                with archive.open(f"{name}.npy", "w", force_zip64=True) as f:
                    np.lib.format.write_array(f, plain, allow_pickle=False)
    except OSError as e:
        raise SmeltError(f"'{path}' cannot be written: {e.strerror or e}", kind="infra") from None


def read_npz(path: Path, dtypes: Mapping[str, Any]) -> dict[str, Array]:
    """Read arrays. dtypes: name -> NumPy type, for those types that NumPy's format cannot name (bfloat16).

    Raises SmeltError(kind='invalid') for a file that is none.
    """
    try:
        read = np.load(path, allow_pickle=False)
        found = {name: np.asarray(read[name]) for name in read.files}
    except Exception as e:  # the file's bytes decide what NumPy and zipfile raise
        raise SmeltError(f"cannot read '{path}' as .npz: {str(e)[:500]}") from None
    return {n: a.view(dtypes[n]) if a.dtype.kind == "V" and n in dtypes else a for n, a in found.items()}
