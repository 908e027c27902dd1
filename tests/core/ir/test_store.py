"""Weights beside a dump: each content once, whole files, some MiB at a time, nothing that was damaged."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smelt.core.diag import SmeltError
from smelt.core.dtype import f16, f32
from smelt.core.ir.graph import EAGER, Module, Weight
from smelt.core.ir.store import FOLDER, WeightStore
from smelt.core.ir.text import parse_module, print_module

Array = np.ndarray[Any, Any]


def weight(name: str = "@w", count: int = 1000, start: int = 0) -> Weight:
    return Weight(name, f32, (count,), np.arange(start, start + count, dtype=np.float32))


def through(store: WeightStore, *weights: Weight) -> Module:
    """The module after a way through text and store."""
    module = Module("m", weights={w.name: w for w in weights})
    store.keep(module.weights.values())
    return store.fill(parse_module(print_module(module)))


def test_every_weight_comes_back(tmp_path: Path) -> None:
    """In memory, from a file, converted on the way, transposed on use, small, empty, of no axes."""
    raw = np.random.default_rng(0).standard_normal((300, 200)).astype(np.float32)
    (tmp_path / "raw.bin").write_bytes(b"skipped!" + raw.tobytes())
    span = Weight("@span", f32, raw.shape, path=tmp_path / "raw.bin", offset=8)
    weights = (
        weight(),
        span,
        Weight("@half", f16, raw.shape, path=tmp_path / "raw.bin", offset=8, stored=f32),
        span.transposed((1, 0), "@turned"),
        span.scaled(np.full((1, 200), 0.5), "@scaled"),
        weight("@few", 3),
        weight("@none", 0),
        Weight("@lone", f32, (), np.array(2, np.float32)),
        Weight("@listed", f32, (4,), recipe=lambda: iter([np.ones(4, np.float32)])),
    )
    found = through(WeightStore(tmp_path), *weights)
    for w in weights:
        again = found.weights[w.name]
        assert again == w and again.array().tobytes() == np.ascontiguousarray(w.array()).tobytes(), w.name
        assert (again.path is None) == (w.bytes <= EAGER), "large ones are not read before they are used"
    assert len(list((tmp_path / FOLDER).iterdir())) == 5, "few elements stand in the text"


def test_one_content_is_one_file(tmp_path: Path) -> None:
    store = WeightStore(tmp_path)
    through(store, weight("@a"), weight("@b"), weight("@c", start=1))
    files = {p.name: p.stat().st_mtime_ns for p in store.folder.iterdir()}
    through(store, weight("@d"))
    assert {p.name: p.stat().st_mtime_ns for p in store.folder.iterdir()} == files
    assert files.keys() == {weight().digest, weight(start=1).digest}


def test_a_large_weight_is_never_in_memory(tmp_path: Path) -> None:
    """Neither one in a file nor one that is made from it, at either end."""
    path, shape = tmp_path / "raw.bin", (4096, 8192)
    with path.open("wb") as f:
        f.truncate(4 * shape[0] * shape[1])
        f.write(np.arange(100_000, dtype=np.float32).tobytes())
    span = Weight("@span", f32, shape, path=path)
    tracemalloc.start()
    try:
        found = through(WeightStore(tmp_path), span, span.transposed((1, 0), "@turned"))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < span.bytes / 4
    assert found.weights["@turned"].window(shape[::-1], 1, 0, 1)[3, 0] == 3


def test_a_weight_that_cannot_be_made_leaves_nothing(tmp_path: Path) -> None:
    def breaks() -> Iterator[Array]:
        yield np.ones(1000, np.float32)
        raise SmeltError("the model's file is gone")

    with pytest.raises(SmeltError, match="is gone"):
        WeightStore(tmp_path).keep([Weight("@w", f32, (2000,), recipe=breaks, known_digest="0" * 64)])
    assert not list((tmp_path / FOLDER).iterdir())


def cut(place: Path) -> None:
    place.write_bytes(place.read_bytes()[:-4])


def flip(place: Path) -> None:
    raw = bytearray(place.read_bytes())
    raw[17] ^= 1
    place.write_bytes(raw)


def link(place: Path) -> None:
    os.rename(place, place.with_name("elsewhere"))
    place.symlink_to("elsewhere")


def pipe(place: Path) -> None:
    place.unlink()
    os.mkfifo(place)


def folder(place: Path) -> None:
    place.unlink()
    place.mkdir()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (Path.unlink, "has no file"),
        (cut, "another length"),
        (flip, "not what its name says"),
        (link, "is damaged"),
        (pipe, "no plain file"),
        (folder, "no plain file"),
    ],
)
def test_damage_is_named(tmp_path: Path, change: Callable[[Path], None], message: str) -> None:
    store, w = WeightStore(tmp_path), weight()
    through(store, w)
    change(store.folder / w.digest)
    with pytest.raises(SmeltError, match=message) as e:
        store.fill(parse_module(print_module(Module("m", weights={w.name: w}))))
    assert e.value.hint and "@w" in str(e.value)


def test_a_cut_file_is_written_again(tmp_path: Path) -> None:
    store, w = WeightStore(tmp_path), weight()
    through(store, w)
    cut(store.folder / w.digest)
    assert through(store, w).weights["@w"] == w


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "0" * 63, "A" * 64])
def test_names_lead_nowhere_else(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret").write_bytes(bytes(4000))
    (tmp_path / FOLDER).mkdir()
    text = f'module "m" {{ weight @w: f32[1000] = sha256 "{name}" }}'
    with pytest.raises(SmeltError, match="no SHA-256"):
        WeightStore(tmp_path).fill(parse_module(text))


def test_what_is_only_named_cannot_be_kept(tmp_path: Path) -> None:
    bare = Weight("@w", f32, (1000,), known_digest=weight().digest)
    with pytest.raises(SmeltError, match="has no file"):
        WeightStore(tmp_path).keep([bare])
    through(WeightStore(tmp_path), weight())
    WeightStore(tmp_path).keep([bare])  # it is there


def test_what_stands_in_the_text_is_not_hashed(tmp_path: Path) -> None:
    def unread() -> Iterator[np.ndarray[Any, Any]]:
        raise AssertionError("it was read")
        yield

    WeightStore(tmp_path).keep([Weight("@few", f32, (4,), recipe=unread)])
    assert not (tmp_path / FOLDER).exists()
