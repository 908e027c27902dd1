"""Several models in one program: each runs its own code on its own weights, however they are linked."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from elf_facts import read_elf
from installed import needed
from onnx import TensorProto, helper, numpy_helper

from smelt.compiler import compile_here
from smelt.core.bundle import Bundle, read_bundle
from smelt.core.diag import SmeltError
from smelt.core.naming import Names
from smelt.driver import Request, compile
from smelt.targets.toolchain import runtime_dir

HERE = Path(__file__).resolve().parent
NAMES = ("det", "rec", "ocr", "cls")
RNG = np.random.default_rng(1)
WEIGHTS = {n: RNG.standard_normal((4, 3)).astype(np.float32) for n in NAMES}
STRICT = ("-Wall", "-Wextra", "-Werror")


def product(name: str) -> onnx.ModelProto:
    """x[n, 4] times weights: all models alike but for the numbers."""
    shapes = {"x": ["n", 4], "y": ["n", 3]}
    x, y = (helper.make_tensor_value_info(k, TensorProto.FLOAT, s) for k, s in shapes.items())
    weights = numpy_helper.from_array(WEIGHTS[name], "w")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], name, [x], [y], [weights])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bundle]:
    folder, made = tmp_path_factory.mktemp("many"), {}
    for name in NAMES:
        onnx.save(product(name), folder / f"{name}.onnx")
        request = Request(str(folder / f"{name}.onnx"), output=str(folder / name), static=True, runner=False)
        made[name] = compile_here(request)
    return made


def output(*words: object, **env: str) -> str:
    """What a program says; a signal or a failure of it fails the test."""
    done = subprocess.run(
        [*map(str, words)], env={**os.environ, **env}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    return done.stdout


def expected(rows: int) -> dict[str, list[list[float]]]:
    x = np.arange(1, 4 * rows + 1, dtype=np.float32).reshape(rows, 4)
    return {name: (x @ WEIGHTS[name]).ravel() for name in NAMES}


@pytest.mark.parametrize("words", [("gcc", "-std=c11"), ("g++", "-x", "c++")], ids=["c", "c++"])
def test_two_shared_and_two_static_models_in_one_program(
    words: tuple[str, ...], bundles: dict[str, Bundle], tmp_path: Path
) -> None:
    paths = {n: bundles[n].path for n in NAMES}
    command = [needed(words[0]), *words[1:], *STRICT, *(f"-I{p}" for p in paths.values())]
    command += [str(HERE / "many_models.c"), "-x", "none", "-o", str(tmp_path / "program")]
    for n in ("det", "rec"):
        command += [f"-L{paths[n]}", f"-l{n}", f"-Wl,-rpath,{paths[n]}"]
    command += [str(paths[n] / f"lib{n}.a") for n in ("ocr", "cls")]
    subprocess.run([*command, "-ldl", "-lpthread", "-lm"], check=True)
    said = output(tmp_path / "program", 3, paths["ocr"], paths["cls"], paths["rec"]).splitlines()
    want = expected(3)
    for name, line in zip([*NAMES, *NAMES], said[:8], strict=True):
        first, *values = line.split()
        assert first == name
        np.testing.assert_allclose([float(v) for v in values], want[name], rtol=1e-5)
    assert said[8].startswith("folder: 5 ") and "rec/det.weights: cannot be opened" in said[8]
    assert said[9].startswith("static folder: 5 ") and "cls/ocr.weights: cannot be opened" in said[9]
    assert said[10].startswith("session: 1 ") and "the session is one of another model" in said[10]
    assert said[11].startswith("static session: 1 ") and "the session is one of another model" in said[11]
    np.testing.assert_allclose(
        [float(v) for v in said[12].removeprefix("rec ").split()], expected(1)["rec"], rtol=1e-5
    )


LOADER = """
import ctypes, os, sys
paths = dict(w.split("=") for w in sys.argv[1:])
libraries = {n: ctypes.CDLL(p, mode=os.RTLD_NOW | os.RTLD_GLOBAL) for n, p in paths.items()}
for name in [*paths, *paths]:
    function = lambda f: getattr(libraries[name], f"{name}_{f}")
    function("error").restype = function("input_name").restype = ctypes.c_char_p
    s = ctypes.c_void_p()
    print(name, function("open")(None, None, ctypes.byref(s)), function("error")(None).decode())
    function("close")(s)
"""


def test_libraries_loaded_for_all_to_see_find_their_own_weights(
    bundles: dict[str, Bundle], tmp_path: Path
) -> None:
    """RTLD_GLOBAL, all in one folder as an app installs them: names of one must not stand for another's."""
    for b in bundles.values():
        for file in (b.names.library, b.names.weights):
            shutil.copyfile(b.path / file, tmp_path / file)
    words = [f"{n}={tmp_path / b.names.library}" for n, b in bundles.items()]
    said = output(sys.executable, "-c", LOADER, *words).split("\n")
    assert said[:8] == [f"{n} 0 " for n in (*NAMES, *NAMES)]
    # with the weights of another model under the name of its own, of the same size
    shutil.copyfile(tmp_path / "rec.weights", tmp_path / "det.weights")
    assert (tmp_path / "det.weights").stat().st_size == (bundles["det"].path / "det.weights").stat().st_size
    said = output(sys.executable, "-c", LOADER, *words).split("\n")
    assert [line.split()[:2] for line in said[:4]] == [["det", "1"], ["rec", "0"], ["ocr", "0"], ["cls", "0"]]
    assert "holds the weights of another model than 'det'" in said[0]


def test_libraries_show_the_models_functions_and_nothing_else(bundles: dict[str, Bundle]) -> None:
    for name, b in bundles.items():
        identity = b.manifest["library"]["identity"]
        elf = read_elf((b.path / b.names.library).read_bytes())
        functions = {*b.names.functions, f"{name}_open_{identity}"}
        assert elf.soname == f"lib{name}.so" and elf.exports == tuple(sorted(functions))
        row = json.loads((b.path / "manifest.json").read_text())["library"]
        files = {"file": f"lib{name}.so", "static": f"lib{name}.a", "header": f"{name}.h"}
        assert row == {"prefix": name, "identity": identity, **files}
        assert b.manifest["weights"]["file"] == f"{name}.weights"


def test_a_plugin_does_not_hand_on_the_model_linked_into_it(
    bundles: dict[str, Bundle], tmp_path: Path
) -> None:
    """Two plug-ins with one model's name in each: the first must not give its model to the second."""
    made = []
    for name in ("det", "rec"):
        twin = compile_here(
            Request(str(bundles[name].path) + ".onnx", output=str(tmp_path / name), static=True, runner=False,
                    prefix="twin")
        )  # fmt: skip
        source = tmp_path / f"{name}.c"
        source.write_text(
            f'#include "twin.h"\n#include <stddef.h>\n'
            f"int {name}_try(const char *folder) {{ smelt_session *s = NULL;\n"
            "  int status = twin_open(folder, NULL, &s); twin_close(s); return status; }\n"
        )
        out = tmp_path / f"plugin_{name}.so"
        command = [needed("gcc"), "-shared", "-fPIC", f"-I{twin.path}", str(source)]
        subprocess.run([*command, str(twin.path / "libtwin.a"), "-o", str(out), "-lm"], check=True)
        assert read_elf(out.read_bytes()).exports == (f"{name}_try",)
        made.append(out)
    script = (
        "import ctypes, os, sys\n"
        "for n, p, f in zip(('det', 'rec'), sys.argv[1:3], sys.argv[3:]):\n"
        "    print(getattr(ctypes.CDLL(p, mode=os.RTLD_GLOBAL | os.RTLD_NOW), n + '_try')(f.encode()))\n"
    )
    assert output(sys.executable, "-c", script, *made, tmp_path / "det", tmp_path / "rec") == "0\n0\n"
    assert output(sys.executable, "-c", script, *made, tmp_path / "rec", tmp_path / "det") == "1\n1\n"


@pytest.mark.parametrize("kind", ["shared", "static"])
def test_two_models_of_one_name_do_not_run_silently(
    kind: str, bundles: dict[str, Bundle], tmp_path: Path
) -> None:
    """Both model.onnx, as exporters call them: one source file, two linked by folder, two linked by path."""
    gcc, parts, paths = needed("gcc"), [], []
    for name in ("det", "rec"):
        folder = tmp_path / name
        (folder / "in").mkdir(parents=True)
        file = shutil.copyfile(f"{bundles[name].path}.onnx", folder / "in" / "model.onnx")
        request = Request(str(file), output=str(folder / "out"), static=True, runner=False)
        paths.append(compile_here(request).path)
        source = tmp_path / f"{name}.c"
        source.write_text(
            f'#include "model.h"\nint {name}(void) '
            "{ smelt_session *s; return model_open(NULL, NULL, &s); }\n"
        )
        parts.append(tmp_path / f"{name}.o")
        subprocess.run([gcc, f"-I{paths[-1]}", "-c", str(source), "-o", str(parts[-1])], check=True)
    main = tmp_path / "main.c"
    main.write_text("int det(void), rec(void);\nint main(void) { return det() || rec(); }\n")
    command = [gcc, str(main), *map(str, parts), "-o", str(tmp_path / "program")]
    file = "libmodel.so" if kind == "shared" else "libmodel.a"
    by_path = [str(p / file) for p in paths] + [f"-Wl,-rpath,{p}" for p in paths] + ["-lm"]
    by_folder = [f"-L{p}" for p in paths] + [f"-l:{file}", f"-l:{file}", "-lm"]
    done = subprocess.run([*command, *by_folder], capture_output=True, text=True)
    assert done.returncode and "undefined reference to `model_open_" in done.stderr
    done = subprocess.run([*command, *by_path], capture_output=True, text=True)
    if kind == "static":
        assert done.returncode and "multiple definition of `model_open" in done.stderr
    elif done.returncode:
        assert "undefined reference to `model_open_" in done.stderr
    else:  # a linker that takes both libraries leaves it to the loader
        ran = subprocess.run([tmp_path / "program"], capture_output=True, text=True)
        assert ran.returncode == 127 and "undefined symbol: model_open_" in ran.stderr
    both = tmp_path / "both.c"
    both.write_text("".join(f'#include "{p}/model.h"\n' for p in paths))
    done = subprocess.run([gcc, "-fsyntax-only", str(both)], capture_output=True, text=True)
    assert done.returncode and "two models are called model" in done.stderr


def test_the_example_fits_any_model(bundles: dict[str, Bundle], tmp_path: Path) -> None:
    example = runtime_dir().resolve().parents[1] / "examples" / "run_model.c"
    b = bundles["rec"]
    for words in (("gcc", "-std=c11"), ("g++", "-x", "c++")):
        program = tmp_path / words[0]
        command = [needed(words[0]), *words[1:], *STRICT, "-DSMELT_PREFIX=rec", f"-I{b.path}", str(example)]
        command += ["-x", "none", f"-L{b.path}", "-lrec", f"-Wl,-rpath,{b.path}", "-o", str(program)]
        subprocess.run(command, check=True)
        said = output(program, 2, 4)
        assert float(said.split()[-1]) == pytest.approx(WEIGHTS["rec"][:, 0].sum(), rel=1e-4)


def test_headers_stand_in_any_order_beside_the_general_names(
    bundles: dict[str, Bundle], tmp_path: Path
) -> None:
    source = tmp_path / "use.c"
    source.write_text(
        '#define SMELT_PREFIX det\n#include "smelt.h"\n#include "rec.h"\n#include "det.h"\n#include "rec.h"\n'
        "smelt_status (*a)(const char *, const smelt_options *, smelt_session **) = smelt_open;\n"
        "smelt_status (*b)(const char *, const smelt_options *, smelt_session **) = rec_open;\n"
        "#undef SMELT_PREFIX\n#define SMELT_PREFIX rec\n"
        "void (*c)(smelt_session *) = smelt_close;\n"
        "int sum = DET_INPUT_X + REC_OUTPUT_Y + REC_INPUT_COUNT;\n"
    )
    for words in (("gcc", "-std=c11", "-Wpedantic"), ("g++", "-x", "c++", "-Wpedantic")):
        made = tmp_path / f"{words[0]}.o"
        includes = [f"-I{bundles[n].path}" for n in ("det", "rec")]
        command = [needed(words[0]), *words[1:], *STRICT, *includes, "-c", str(source), "-o", str(made)]
        subprocess.run(command, check=True)
        asked = [needed("nm"), "-u", str(made)]
        wanted = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
        opens = {f"{n}_open_{bundles[n].manifest['library']['identity']}" for n in ("det", "rec")}
        assert set(wanted.split()) - {"U"} == {*opens, "rec_close"}


def test_a_chosen_name(bundles: dict[str, Bundle], tmp_path: Path) -> None:
    source = Path(f"{bundles['det'].path}.onnx")
    made = compile(source, name="text_finder", output=tmp_path / "out")
    assert made.names == Names("text_finder") and made.manifest["model"]["name"] == "text_finder"
    assert {"libtext_finder.so", "text_finder.h", "text_finder.weights"} <= set(made.manifest["files"])
    assert read_bundle(tmp_path / "out").names == made.names
    with pytest.raises(SmeltError, match="allowed are up to 40") as error:
        compile(source, name="Text-Finder", output=tmp_path / "no")
    assert error.value.kind == "invalid" and "'text_finder'" in str(error.value.hint)
    assert not (tmp_path / "no").exists()


def test_a_model_file_of_any_name_compiles(bundles: dict[str, Bundle], tmp_path: Path) -> None:
    """A name that is no text at all, with all that a C comment must not hold."""
    source = tmp_path / os.fsdecode(b"*\\\n\xff\xfe sem.onnx")
    shutil.copyfile(f"{bundles['det'].path}.onnx", source)
    made = compile_here(Request(str(source), output=str(tmp_path / "out"), runner=False))
    assert made.names.prefix.startswith("sem_")
    use = tmp_path / "use.c"
    use.write_text(f'#include "{made.names.header}"\n')
    command = [needed("gcc"), *STRICT, f"-I{made.path}", "-c", str(use), "-o", str(tmp_path / "o")]
    subprocess.run(command, check=True)
    library = ctypes.CDLL(str(made.path / made.names.library))
    assert library[f"{made.names.prefix}_open"](None, None, ctypes.byref(ctypes.c_void_p())) == 0
