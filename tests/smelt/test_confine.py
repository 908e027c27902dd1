"""What a compile may touch: a plug-in tries more in the child; and layouts of models that people have."""

from __future__ import annotations

import errno
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from isolated import isolated
from onnx import TensorProto, helper, numpy_helper

import smelt
from smelt import compile_child, sandbox
from smelt.confine import largest_file, refusal
from smelt.core.cache import cache_dir
from smelt.core.diag import SmeltError
from smelt.driver import planned
from smelt.forks import SERVER
from smelt.request import Request


def added(weight: float = 1) -> onnx.ModelProto:
    """A model that adds a weight of 64 x 64 elements."""
    w = numpy_helper.from_array(np.full((64, 64), weight, np.float32), "w")
    node = helper.make_node("Add", ["a", "w"], ["b"])
    a = helper.make_tensor_value_info("a", TensorProto.FLOAT, [64, 64])
    graph = helper.make_graph([node], "g", [a], [onnx.ValueInfoProto(name="b")], [w])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def tried(folder: Path, body: str) -> str:
    """The error of a compile whose plug-in does this in the child; what it says last with `tell`."""
    for name in ("model", "plug", "made", "home"):
        (folder / name).mkdir(exist_ok=True)
    onnx.save(added(), folder / "model" / "m.onnx")
    (folder / "home" / "secret").write_text("secret")
    lines = ["import ctypes, errno, os, socket, subprocess, sys", f"os.chdir({str(folder)!r})"]
    lines += ["def tell(*what): raise ValueError(' '.join(map(str, what)))"]
    lines += ["def refused(do, *args):", "    try: do(*args)"]
    lines += ["    except PermissionError: return True", "    return False"]
    plugin = folder / "plug" / "tries.py"
    plugin.write_text("\n".join([*lines, body]))
    with pytest.raises(SmeltError) as caught:
        smelt.compile(folder / "model" / "m.onnx", output=folder / "made" / "out", plugins=(str(plugin),))
    assert os.listdir(folder / "made") == []
    assert caught.value.kind != "internal"
    return str(caught.value)


SOCKETS = """
kinds = [(f, k) for f in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX, socket.AF_NETLINK)
         for k in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW)]
found = [refused(socket.socket, *row) for row in kinds]
code = "import socket\\ntry: socket.socket()\\nexcept PermissionError: print('refused')"
child = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True).stdout.strip()
libc = ctypes.CDLL(None, use_errno=True)
ring = libc.syscall(425, 1, ctypes.create_string_buffer(256))
tell(set(found), child, ring, errno.errorcode[ctypes.get_errno()])
"""


def test_no_network(tmp_path: Path) -> None:
    assert "{True} refused -1 EACCES" in tried(tmp_path, SOCKETS)
    said = tried(tmp_path, "socket.create_connection(('127.0.0.1', 1))")
    assert "such as to use the network" in said
    assert "SMELT_COMPILE_CONFINE=0" in said


def test_the_filter_on_all_architectures() -> None:
    """Its program is interpreted here: for each architecture the calls of the table, and no other, are
    refused."""
    rows = list(struct.iter_unpack("=HBBI", sandbox._filter()))

    def answer(arch: int, number: int) -> int:
        at, a = 0, 0
        while True:
            code, yes, no, k = rows[at]
            at += 1
            if code == 0x20:
                a = arch if k == 4 else number
            elif code == 0x54:
                a &= k
            elif code == 0x15:
                at += yes if a == k else no
            else:
                return k

    for arch, calls in sandbox.REFUSED_CALLS.items():
        refused = {n for n in range(1000) if answer(arch, n) != 0x7FFF0000}
        assert refused == set(calls)
    x86_64 = 0xC000003E
    assert answer(x86_64, 0x40000000 + 41) == answer(1234, 0) == 0x0005000D
    assert answer(x86_64, 0x40000000) == 0x7FFF0000


FILES = """
def write(path):
    with open(path, 'w') as f: f.write('x')
model = os.path.abspath('model/m.onnx')
kept = os.path.join(os.environ.get('SMELT_CACHE') or os.path.expanduser('~/.cache/smelt'), 'poison')
tried = {
    'read': (open, 'home/secret'), 'list': (os.listdir, 'home'), 'write': (write, 'home/secret'),
    'create': (write, 'home/new'), 'beside': (write, 'made/new'), 'folder': (os.mkdir, 'made/new'),
    'model': (write, model), 'next to it': (write, 'model/new'), 'kept': (write, kept),
    'remove': (os.unlink, model), 'rename': (os.rename, model, 'model/n.onnx'),
    'cut': (os.truncate, model, 0), 'temporary': (write, '/tmp/smelt-new'),
    'link': (os.symlink, model, 'model/link'), 'devices': (os.listdir, '/dev'),
}
tell('not refused:', [name for name, (do, *args) in tried.items() if not refused(do, *args)])
"""


def test_files_of_others_are_refused(tmp_path: Path) -> None:
    assert "not refused: []" in tried(tmp_path, FILES)
    assert (tmp_path / "home" / "secret").read_text() == "secret"
    said = tried(tmp_path, "open('home/secret')")
    assert f"the compile may not use '{tmp_path}/home/secret'" in said
    assert "SMELT_COMPILE_CONFINE=0" in said
    assert f"may not use '{tmp_path}/home/new'" in tried(tmp_path, "open('home/new', 'w')")


def test_a_refusal_while_a_node_is_translated(tmp_path: Path) -> None:
    body = "from smelt.plugin import OnnxOp\ndef build(c): open('home/secret')\n"
    (tmp_path / "own").mkdir()
    model = added()
    model.graph.node[0].op_type, model.graph.node[0].domain = "Mine", "own"
    model.opset_import.append(helper.make_opsetid("own", 1))
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "secret").write_text("secret")
    (tmp_path / "own" / "p.py").write_text(
        f"import os\nos.chdir({str(tmp_path)!r})\n{body}BINDINGS = (OnnxOp('Mine', 1, build, 'own'),)\n"
    )
    with pytest.raises(SmeltError, match=r"may not use '.*/home/secret'") as caught:
        smelt.compile(model, output=tmp_path / "out", plugins=(str(tmp_path / "own" / "p.py"),))
    assert caught.value.kind == "infra"


def test_other_processes_are_out_of_reach(tmp_path: Path) -> None:
    body = "tell(refused(os.kill, os.getppid(), 0), refused(open, f'/proc/{os.getppid()}/mem', 'rb'))"
    assert "True True" in tried(tmp_path, body)


@pytest.mark.parametrize(
    "report",
    ["", "[]", "{", '{"ok": false}', '{"ok": 1}', "[" * 100_000, "\\0", '{"ok": true, "folder": "../home"}'],
)
def test_a_report_that_is_none(tmp_path: Path, report: str) -> None:
    """A child that was taken over ends as a broken one, and what it names is moved nowhere."""
    (tmp_path / "p.py").write_text(
        "import os, tempfile\n"
        f"open(os.path.join(tempfile.tempdir, 'result.json'), 'w').write({report!r})\nos._exit(0)\n"
    )
    with pytest.raises(SmeltError) as caught:
        smelt.compile(added(), output=tmp_path / "out", plugins=(str(tmp_path / "p.py"),))
    # a folder that was not made for this output is what one sees, too, who moves the output meanwhile
    assert caught.value.kind == ("infra" if "folder" in report else "internal")
    assert os.listdir(tmp_path) == ["p.py"]


def test_who_wants_no_confinement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_COMPILE_CONFINE", "0")
    body = "socket.socket().close()\ntell(open('home/secret').read())"
    assert "ValueError: secret" in tried(tmp_path, body)


def test_a_huge_file_is_an_error(tmp_path: Path) -> None:
    body = "import tempfile\nf = tempfile.TemporaryFile()\nf.truncate(1 << 30)\nf.truncate(1 << 34)"
    assert re.search(r"would exceed its limit of 8,59\d,\d{3},\d{3} bytes", tried(tmp_path, body))
    (tmp_path / "model" / "sub").mkdir()
    with open(tmp_path / "model" / "sub" / "w.bin", "wb") as f:
        f.truncate(3 << 30)
    more = largest_file(Request(str(tmp_path / "model" / "m.onnx")))
    assert more >= 16 * (3 << 30) + (8 << 30)


def test_processes_are_limited(tmp_path: Path) -> None:
    """In a process that is not root's, which the kernel excepts."""
    code = """
import os, smelt.limits as limits
tasks = int(open('/proc/loadavg').read().split()[3].split('/')[1])
limits.TASKS = 20 - tasks
limits.apply_to_system(1 << 33)
if os.getuid() == 0: os.setuid(54321)
count = 0
try:
    while count < 1000:
        if os.fork() == 0: os.read(0, 1); os._exit(0)
        count += 1
except BlockingIOError:
    print('refused')
"""
    done = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert done.communicate(timeout=300)[0] == b"refused\n"
    assert "True" in tried(
        tmp_path, "import resource as r; tell(4096 < r.getrlimit(r.RLIMIT_NPROC)[0] < 10**6)"
    )


def test_the_server_is_not_confined(tmp_path: Path) -> None:
    said = tried(tmp_path, "tell([l.strip() for l in open('/proc/self/status') if 'Seccomp:' in l])")
    assert "Seccomp:\\t2" in said
    assert SERVER.process is not None
    status = Path(f"/proc/{SERVER.process.pid}/status").read_text()
    assert "NoNewPrivs:\t0" in status or "NoNewPrivs:\t1" in Path("/proc/self/status").read_text()


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4, 5, 6])
def test_older_kernels(tmp_path: Path, version: int) -> None:
    """Rights that a version of Landlock does not know are not asked for, and the compile works without."""
    onnx.save(added(), tmp_path / "m.onnx")
    request = Request(str(tmp_path / "m.onnx"), output=str(tmp_path / "out"))

    def work() -> tuple[int, str]:
        sandbox._landlock = lambda: version
        theirs, _ours = os.pipe()
        os.dup2(theirs, 0)  # a caller that lives
        done = compile_child._compile(request, lambda stage: None, tmp_path)
        refused = 0
        for path in (tmp_path / "new", Path("/var/tmp/smelt-new")):
            try:
                path.touch()
            except PermissionError:
                refused += 1
        return refused, done["folder"]

    how, (count, name) = isolated(work)
    assert how == "ok"
    Path("/var/tmp/smelt-new").unlink(missing_ok=True)
    # the model's folder is that of temporary files here, which may be written
    assert count == (1 if version else 0)
    assert (tmp_path / name / "manifest.json").is_file()


# ---------------------------------------------------------------- layouts that work


def saved(path: Path, weight: float = 1, data: str = "m.onnx_data") -> Path:
    """The model in a file, its weight in another one beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    (path.parent / data).parent.mkdir(exist_ok=True)
    onnx.save(added(weight), path, save_as_external_data=True, location=data, size_threshold=0)
    return path


def works(model: object, out: str | Path, weight: float = 1) -> None:
    """The compile of a model that adds this weight gives a bundle which does."""
    session = smelt.load(smelt.compile(model, output=out), threads=1)
    (got,) = session.run(None, {"a": np.zeros((64, 64), np.float32)})
    np.testing.assert_array_equal(got, np.full((64, 64), weight, np.float32))


@pytest.mark.parametrize("large", [False, True])
def test_links_of_a_cache_of_downloads(tmp_path: Path, large: bool) -> None:
    """The layout of huggingface_hub: files are links to blobs; large: weights inside the model's file."""
    blobs, shown = tmp_path / "hub" / "blobs", tmp_path / "hub" / "snapshots" / "0a1b" / "onnx"
    shown.mkdir(parents=True)
    if large:
        model = added()
        model.graph.initializer[0].raw_data = np.ones((64, 64), np.float32).tobytes()
        big = numpy_helper.from_array(np.ones(1 << 20, np.float32), "unused")
        model.graph.initializer.append(big)
        blobs.mkdir()
        onnx.save(model, blobs / "m.onnx")
    else:
        saved(blobs / "m.onnx")
    for k, file in enumerate(sorted(blobs.iterdir())):
        (shown / file.name).symlink_to(f"../../../blobs/{k}e5f")
        file.rename(blobs / f"{k}e5f")
    works(shown / "m.onnx", tmp_path / "out")


def test_links_that_lead_elsewhere_are_refused(tmp_path: Path) -> None:
    saved(tmp_path / "blobs" / "m.onnx")
    (tmp_path / "shown").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "blobs" / "m.onnx_data").rename(tmp_path / "elsewhere" / "data")
    (tmp_path / "shown" / "m.onnx").symlink_to("../blobs/m.onnx")
    (tmp_path / "shown" / "m.onnx_data").symlink_to("../elsewhere/data")
    with pytest.raises(SmeltError, match="outside the model's folder"):
        smelt.compile(tmp_path / "shown" / "m.onnx", output=tmp_path / "out")


def test_relative_paths_and_folders_below(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    saved(tmp_path / "m.onnx", data="sub/m.data")
    works("m.onnx", "out")
    works("m.onnx", "out", 1)  # over the bundle
    saved(tmp_path / "a model" / "m 1.onnx", 2)
    works("a model/m 1.onnx", "an out/of it/b", 2)
    with pytest.raises(SmeltError, match="holds the current folder"):
        smelt.compile("m.onnx", output=".")
    with pytest.raises(SmeltError, match="is not an ONNX model"):
        (tmp_path / "bad.onnx").write_bytes(b"\x08")
        smelt.compile("bad.onnx", output="not/there/b")
    assert not (tmp_path / "not").exists()


def test_models_in_other_places(tmp_path: Path) -> None:
    works(added(3).SerializeToString(), tmp_path / "bytes", 3)
    with tempfile.NamedTemporaryFile(suffix=".onnx") as file:  # in the folder of all temporary files
        file.write(added(4).SerializeToString())
        file.flush()
        works(file.name, tmp_path / "out", 4)
    disk = tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
    try:
        works(added(5), Path(disk) / "out", 5)  # another file system
    finally:
        shutil.rmtree(disk)


def test_entries_dumps_and_plug_ins_in_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = {name: saved(tmp_path / name / "m.onnx", k) for k, name in enumerate(("one", "two"))}
    smelt.compile(models, output=tmp_path / "both")
    monkeypatch.setenv("SMELT_DUMP", str(tmp_path / "dumps" / "of m"))
    works(models["two"], tmp_path / "out", 1)
    monkeypatch.delenv("SMELT_DUMP")
    (dump,) = (tmp_path / "dumps" / "of m").glob("*-patterns.smelt")
    works(dump, tmp_path / "again", 1)


@pytest.mark.parametrize("plan", [True, False])
def test_a_folder_for_dumps_that_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: bool
) -> None:
    monkeypatch.setenv("SMELT_DUMP", "/dev/null/x")
    with pytest.raises(SmeltError, match="the folder of dumps, SMELT_DUMP: '/dev/null/x'") as caught:
        planned(added()) if plan else smelt.compile(added(), output=tmp_path / "out")
    assert caught.value.kind == "infra"


def test_a_user_without_a_home(tmp_path: Path) -> None:
    """As in a container whose user is a number: the error says what to set, and a load needs no home."""
    onnx.save(added(), tmp_path / "m.onnx")
    nobody = "import pwd\ndef nobody(_): raise KeyError\npwd.getpwuid = nobody"
    (tmp_path / "sitecustomize.py").write_text(nobody)
    code = """
import os, sys, smelt
from smelt import library
from smelt.core.diag import SmeltError
try:
    smelt.compile("m.onnx")
except SmeltError as e:
    print(e.kind, e.message, e.hint)
os.environ["SMELT_CACHE"] = sys.argv[1]
made = smelt.compile("m.onnx")
del os.environ["SMELT_CACHE"]
library.COPIED = 0  # as if the weights were large
smelt.load(made)
"""
    homes = ("HOME", "XDG_CACHE_HOME", "SMELT_CACHE")
    env = {k: v for k, v in os.environ.items() if k not in homes} | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code, str(cache_dir())],
        cwd=tmp_path, env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("infra this user has no home folder")
    assert "SMELT_CACHE" in done.stdout


def test_a_family_is_read_in_the_child(tmp_path: Path) -> None:
    """Its package is loaded when a model asks for it, after the confinement."""
    node = helper.make_node("Binarizer", ["x"], ["y"], domain="ai.onnx.ml", threshold=0.5)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])
    graph = helper.make_graph([node], "g", [x], [onnx.ValueInfoProto(name="y")])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    smelt.compile(model, output=tmp_path / "out").verify()


def test_protections_of_this_machine() -> None:
    """This test fails on a kernel that lacks one: then the other tests here prove nothing."""
    assert [what for what, by in sandbox.protections() if by] == ["files", "network"]


@pytest.mark.parametrize("said", ["zig ld.lld failed (1): out: File too large", "zig cc: FileTooBig"])
def test_a_file_beyond_the_callers_limit_is_not_the_confinements_alone(said: str) -> None:
    for error in (SmeltError(said, kind="internal"), OSError(errno.EFBIG, "File too large")):
        found = refusal(error)
        assert found is not None and found.kind == "infra" and "ulimit -f" in str(found.hint)
