"""What a model is called, by cases that people have."""

from __future__ import annotations

import unicodedata

import pytest

from smelt.core.diag import SmeltError
from smelt.core.naming import LONGEST_PREFIX, Names, check_name, name_from


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("det", "det"),
        ("PP-OCRv4_det_infer.sim", "pp_ocrv4_det_infer_sim"),
        ("My Model (1)", "my_model_1"),
        ("3d-unet", "m_3d_unet"),
        ("Größe", "grosse"),
        ("", "model"),
        ("log", "log_model"),  # Android's liblog.so
        ("c++", "c_model"),  # libc.so
        ("sem", "sem_model"),  # sem_open
        ("math", "math_model"),  # math.h
        ("linux", "linux_model"),  # a macro of GNU C
        ("main", "main_model"),
        ("smelt", "smelt_model"),
    ],
)
def test_a_file_name_becomes_a_name(text: str, name: str) -> None:
    assert name_from(text) == name == check_name(name)


def test_letters_that_are_lost_keep_names_apart() -> None:
    texts = ["检测", "识别", "检测-v2", "модель", "🦙", "---", "a" * 100, "a" * 101, "\udcff", "\udcfe"]
    assert len({name_from(t) for t in texts}) == len(texts)
    assert all(len(name_from(t)) <= LONGEST_PREFIX for t in texts)
    assert len({name_from(unicodedata.normalize(form, "détection한글")) for form in ("NFC", "NFD")}) == 1


def test_names_of_files() -> None:
    n = Names("det")
    assert (n.library, n.archive, n.object, n.header, n.weights) == (
        "libdet.so", "libdet.a", "det.o", "det.h", "det.weights",
    )  # fmt: skip
    assert "det_open" in n.functions


WRONG = ("", "Det", "det-1", "3d", "_det", "det_", "a__b", "é", "a" * 41, "a/b", "a\nb")


@pytest.mark.parametrize("text", WRONG)
def test_a_chosen_name_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(SmeltError, match="cannot be a model's name: allowed are up to 40") as error:
        check_name(text)
    assert error.value.kind == "invalid" and name_from(text) in str(error.value.hint)


def test_a_reserved_name_is_refused_with_another() -> None:
    with pytest.raises(SmeltError, match="a word of C, or that of a library") as error:
        check_name("pthread")
    assert "pthread_model" in str(error.value.hint)
