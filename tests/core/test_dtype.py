"""Element types: the range of integers is NumPy's where NumPy has the type, and floats have none."""

from __future__ import annotations

import numpy as np
import pytest

from smelt.core.dtype import DTYPES


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_limits_of_integers(dtype: object) -> None:
    d = DTYPES[str(dtype)]
    if not d.is_int:
        with pytest.raises(ValueError, match=f"{d} is no integer type"):
            _ = d.limits
    elif d.bits >= 8:
        info = np.iinfo(d.numpy)
        assert d.limits == (info.min, info.max)
    else:
        low, high = d.limits
        assert high - low == 2**d.bits - 1 and low in (0, -(2 ** (d.bits - 1)))
