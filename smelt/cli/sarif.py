"""Problems of a model in; a SARIF 2.1.0 log out, as code hosts and editors show findings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

from smelt.core.diag import Problem

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"

# kind of a problem -> what the rule says
RULES: Mapping[str, str] = MappingProxyType(
    {
        "invalid": "The model is not valid ONNX, or an argument does not fit it.",
        "unsupported": "The model is valid, but smelt cannot compile this part of it.",
        "shape": "The sizes given do not fit the model.",
        "infra": "The model could not be read.",
        "internal": "smelt itself failed; this is a bug of smelt.",
        "mismatch": "smelt computes a value that no reference computes.",
    }
)


def log(
    model: str, problems: Sequence[Problem], exit_code: int, more: Mapping[int, str] = MappingProxyType({})
) -> dict[str, Any]:
    """The log of one run of `check`: a rule per kind of problem, a result per problem. more: index of a
    problem -> its file, where that is not `model`.

    A problem of a node has the node as its logical location; every problem has the file as its physical one.
    """
    files = [*dict.fromkeys([model, *more.values()])]
    kinds = [k for k in RULES if any(_rule(p) == k for p in problems)]
    rules = [{"id": k, "shortDescription": {"text": RULES[k]}} for k in kinds]
    results = [
        _result(files, files.index(more.get(n, model)), p, kinds.index(_rule(p)))
        for n, p in enumerate(problems)
    ]
    return _run(files, rules, results, exit_code)


def located_log(found: Sequence[tuple[str, str, Sequence[str]]], exit_code: int) -> dict[str, Any]:
    """The log of a comparison. found: (model, message, names of the nodes) of each mismatch that has a place;
    where several nodes are suspected each of them is a logical location of the one result."""
    files = [*dict.fromkeys(model for model, _, _ in found)]
    results = [
        {
            "ruleId": "mismatch",
            "ruleIndex": 0,
            "level": "error",
            "message": {"text": message},
            "locations": [{**_file(files, model), "logicalLocations": [_node(n) for n in nodes]}],
        }
        for model, message, nodes in found
    ]
    rules = [{"id": "mismatch", "shortDescription": {"text": RULES["mismatch"]}}] if results else []
    return _run(files, rules, results, exit_code)


def _run(
    files: Sequence[str], rules: Sequence[Mapping[str, Any]], results: Sequence[Any], exit_code: int
) -> dict[str, Any]:
    from smelt import __version__

    run = {
        "tool": {"driver": {"name": "smelt", "version": __version__, "rules": rules}},
        "artifacts": [{"location": {"uri": _uri(file)}} for file in files],
        "invocations": [{"executionSuccessful": True, "exitCode": exit_code}],
        "results": results,
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _file(files: Sequence[str], name: str) -> dict[str, Any]:
    return {"physicalLocation": {"artifactLocation": {"uri": _uri(name), "index": files.index(name)}}}


def _node(name: str) -> dict[str, str]:
    return {"name": name, "fullyQualifiedName": name, "kind": "node"}


def _rule(p: Problem) -> str:
    return p.kind if p.kind in RULES else "internal"


def _result(files: Sequence[str], at: int, p: Problem, index: int) -> dict[str, Any]:
    place = _file(files, files[at])
    if p.node:
        place["logicalLocations"] = [_node(p.node)]
    found: dict[str, Any] = {
        "ruleId": _rule(p),
        "ruleIndex": index,
        "level": "error",
        "message": {"text": f"{p.message}; {p.hint}" if p.hint else p.message},
        "locations": [place],
    }
    properties = {"inputs": list(p.inputs), "hint": p.hint or ""}
    return {**found, "properties": {k: v for k, v in properties.items() if v}}


def _uri(model: str) -> str:
    """A relative path as a relative reference, an absolute one as a file URI."""
    path = PurePath(model)
    return path.as_uri() if path.is_absolute() else quote(path.as_posix())
