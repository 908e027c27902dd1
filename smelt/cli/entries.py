"""What users type about entries: one model or a model per entry, and which entry a command is about."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from smelt.cli.common import Usage, model_file
from smelt.core.bundle import Bundle
from smelt.core.naming import is_entry


class _Models(argparse.Action):
    """Words -> their text under the option's name, and args.entries: files by entry, none for one model."""

    def __call__(self, parser: argparse.ArgumentParser, args: Any, values: Any, option: Any = None) -> None:
        words: list[str] = list(values)
        entries = {} if _alone(words) else _entries(parser, words)
        setattr(args, self.dest, " ".join(words))
        args.entries = entries


def add_models(
    parser: argparse.ArgumentParser, name: str, metavar: str, help_text: str, least: int = 1
) -> None:
    """A positional argument that is a model, or several as NAME=MODEL; least 0: it may be left out."""
    several = "; NAME=MODEL NAME=MODEL ... makes a bundle with several entries (docs/entries.md)"
    parser.add_argument(
        name, metavar=metavar, nargs="+" if least else "*", action=_Models, help=help_text + several
    )


def _alone(words: Sequence[str]) -> bool:
    """One model or none; a file may have a '=' in its name."""
    return not words or (len(words) == 1 and (Path(words[0]).exists() or not _named(words[0])))


def _named(word: str) -> bool:
    name, equals, path = word.partition("=")
    return bool(is_entry(name) and equals and path)


def _entries(parser: argparse.ArgumentParser, words: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for word in words:
        name, _, path = word.partition("=")
        if not _named(word):
            parser.error(f"'{word:.200}': of several models each has a name, as in prefill=prefill.onnx")
        if found.setdefault(name, path) != path:
            parser.error(f"the entry '{name}' is there twice, as '{found[name]}' and as '{path}'")
    return found


def chosen_models(args: argparse.Namespace) -> Path | dict[str, Path]:
    """The file of args.model, or those of its entries, which exist. Raises Usage."""
    entries: dict[str, str] = getattr(args, "entries", {})
    return {name: model_file(path) for name, path in entries.items()} or model_file(args.model)


def add_entry_option(parser: argparse.ArgumentParser, otherwise: str) -> None:
    """--entry. otherwise: what is taken without it."""
    parser.add_argument(
        "--entry", metavar="NAME", help=f"the entry of a bundle that has several (default: {otherwise})"
    )


def chosen_entry(args: argparse.Namespace, bundle: Bundle) -> Bundle:
    """The bundle as that entry which --entry names, else the first. Raises SmeltError."""
    return bundle.entry(args.entry)


def chosen_entries(args: argparse.Namespace, bundle: Bundle) -> dict[str, Bundle]:
    """That entry which --entry names, else all, by name. Raises SmeltError."""
    names = bundle.entries if args.entry is None else (args.entry,)
    return {name: bundle.entry(name) for name in names}


def original_models(args: argparse.Namespace, bundle: Bundle) -> dict[str, Path]:
    """The files that --model names for a bundle, by entry. Raises Usage."""
    words: list[str] = args.original or []
    if len(bundle.entries) == 1 and len(words) == 1:
        return {bundle.entries[0]: model_file(words[0])}
    named = dict(word.split("=", 1) for word in words if _named(word))
    missing = [name for name in bundle.entries if name not in named]
    if missing or len(named) != len(words) or len(bundle.entries) == 1:
        form = "--model MODEL"
        if len(bundle.entries) > 1:
            form = " ".join(f"--model {name}=MODEL" for name in bundle.entries)
        raise Usage(f"'{args.source}' is a bundle: name the ONNX file that it was made of with {form}")
    return {name: model_file(named[name]) for name in bundle.entries}
