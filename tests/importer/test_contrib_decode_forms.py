"""Every form of com.microsoft's ops that steer decoding agrees with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from op_forms import Array, Form, Sizes, form, form_tests, k, x

# ---------------------------------------------------------------- bifurcation
# N: source tokens; A: where the source goes on; M: tokens so far; R: predicted rightly


def source(rng: np.random.Generator, shape: tuple[int, ...], sizes: Sizes) -> Array:
    return np.arange(shape[0]) % sizes["V"]


def guesses(rng: np.random.Generator, shape: tuple[int, ...], sizes: Sizes) -> Array:
    """The source from A on, R of them rightly, and one behind."""
    own = np.append(np.arange(sizes["A"], sizes["N"]) % sizes["V"], 1)
    own[sizes["R"] :] += sizes["off"]
    return own


def place(rng: np.random.Generator, shape: tuple[int, ...], sizes: Sizes) -> Array:
    return np.full(shape, sizes["A"])


def _bifurcation() -> dict[str, Form]:
    def sizes(**own: int) -> Sizes:
        return {"N": 9, "M": 4, "A": 2, "R": 3, "V": 9, "off": 3} | own

    several = (
        sizes(), sizes(A=0, R=0), sizes(A=9, R=0), sizes(A=0, R=9), sizes(A=0, R=9, off=-1),
        sizes(V=3, R=4), sizes(V=4, A=1, R=8, off=0), sizes(N=1, A=0, R=1, M=0), sizes(N=0, A=0, R=0, M=2),
        sizes(V=1, N=5, A=1, R=2, off=0),
    )  # fmt: skip
    tokens = (x("N", "i64", make=source), x("M", "i64", low=0, high=4))

    def made(*given: Any, **attrs: Any) -> Form:
        return form("BifurcationDetector", *tokens, *given, outputs=2, types=("i64", "i64"), sizes=several,
                    **attrs)  # fmt: skip

    last = x("N+1-A", "i64", make=guesses)
    where = x("1", "i64", make=place)
    return {
        "tokens": made(where),
        "guesses": made(where, last),
        "guesses of a fixed place": form(
            "BifurcationDetector", *tokens, k([2], "i64"), x("N-1", "i64", make=guesses), outputs=2,
            types=("i64", "i64"), sizes=(sizes(), sizes(R=0), sizes(N=2, R=0)),
        ),
        "a place of rank 0": made(x("", "i64", make=place), last),
        "pairs": made(where, last, min_ngram_size=2, max_ngram_size=2),
        "long": made(where, last, min_ngram_size=2, max_ngram_size=11),
    }  # fmt: skip


FORMS: dict[str, Form] = {
    f"{op}: {name}": f
    for op, forms in (("BifurcationDetector", _bifurcation()),)
    for name, f in forms.items()
}

test_form: Callable[..., None]
test_form, test_form_of_unrelated_sizes, test_compiled_form = form_tests(FORMS, fresh=1, native=2)
