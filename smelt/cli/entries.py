"""Arguments about entries: one model, or a model per entry; the entry that a command is about."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from smelt.cli.common import Usage, model_file
from smelt.core.bundle import Bundle
from smelt.core.naming import is_entry


class _Models(argparse.Action):
    """argparse action: sets the option to the words as text, and args.entries to file by entry (empty for one
    model)."""

    def __call__(self, parser: argparse.ArgumentParser, args: Any, values: Any, option: Any = None) -> None:
        words: list[str] = list(values)
        entries = {} if _alone(words) else _entries(parser, words)
        setattr(args, self.dest, " ".join(words))
        args.entries = entries


def add_models(
    parser: argparse.ArgumentParser, name: str, metavar: str, help_text: str, least: int = 1
) -> None:
    """Add a positional argument: a model, or several as NAME=MODEL. least: 0 makes it optional."""
    several = "; NAME=MODEL NAME=MODEL ... makes a bundle with several entries (docs/entries.md)"
    parser.add_argument(
        name, metavar=metavar, nargs="+" if least else "*", action=_Models, help=help_text + several
    )


def _alone(words: Sequence[str]) -> bool:
    """Whether the words are one model or none; a file's name may contain '='."""
    return not words or (len(words) == 1 and (os.path.exists(words[0]) or not _named(words[0])))


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
    """The file of args.model, or entry -> file. Raises Usage where one does not exist."""
    entries: dict[str, str] = getattr(args, "entries", {})
    return {name: model_file(path) for name, path in entries.items()} or model_file(args.model)


def add_entry_option(parser: argparse.ArgumentParser, otherwise: str) -> None:
    """Add --entry. otherwise: the default, as text for --help."""
    parser.add_argument(
        "--entry", metavar="NAME", help=f"the entry of a bundle that has several (default: {otherwise})"
    )


def chosen_entry(args: argparse.Namespace, bundle: Bundle) -> Bundle:
    """The bundle's entry that --entry names, else the first one. Raises SmeltError for an unknown name."""
    return bundle.entry(args.entry)


def chosen_entries(args: argparse.Namespace, bundle: Bundle) -> dict[str, Bundle]:
    """Name -> the entry that --entry names, else all entries. Raises SmeltError for an unknown name."""
    names = bundle.entries if args.entry is None else (args.entry,)
    return {name: bundle.entry(name) for name in names}


def original_models(args: argparse.Namespace, bundle: Bundle) -> dict[str, Path]:
    """Entry -> the ONNX file that --model names for it. Raises Usage where one is missing."""
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
