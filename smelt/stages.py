"""The passes of a whole compile; a compile between two passes, from an ONNX file or a dump, and to a dump."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Any, Final

from smelt.core.bundle import hash_file
from smelt.core.diag import SmeltError
from smelt.core.ir.dump import DUMP_SUFFIX, Dump, dump_text, parse_dump, read_dump, write_dump
from smelt.core.ir.graph import Module
from smelt.core.ir.store import PackedWeights, WeightStore
from smelt.core.ir.text import print_module
from smelt.core.ir.verify import LOWERED, module_facts, verify
from smelt.core.machine import CPU, Machine
from smelt.core.manifest_schema import (
    GROUPS,
    HALVED,
    KERNEL_WORK,
    QUANTISED,
    check_groups,
    fields,
    flag,
    list_of,
    maybe,
    sha256,
    table,
    text,
    whole_number,
)
from smelt.core.naming import check_name, entry_part
from smelt.core.package import package_of
from smelt.core.passes.context import Context, Options, nothing
from smelt.core.passes.equivalence import NAIVE
from smelt.core.passes.lowering import half, place
from smelt.core.passes.lowering.lower import lower
from smelt.core.passes.manager import Pass, run_pipeline, run_together
from smelt.core.passes.numerics import fast_parts
from smelt.core.passes.pipeline import PIPELINE
from smelt.core.passes.quantized.quantize import quantized_products, quantized_summary
from smelt.core.passes.recheck import recheck
from smelt.core.passes.rewriting.editor import STRUCTURAL
from smelt.core.passes.whole_graph.expand import expand
from smelt.core.plan.state import StateUse, with_shared_state, with_state
from smelt.core.schedule import schedule_by, schedule_module
from smelt.core.schedule.book import Book, parse_book
from smelt.core.schedule.recall import Recall, Recalled
from smelt.core.spread import SpreadOut, serially
from smelt.importer import import_named, interface
from smelt.importer.families import core_op
from smelt.importer.interface import stands_for_more
from smelt.manifest import group_rows
from smelt.request import Request
from smelt.targets.platform import TargetSpec, parse_target
from smelt.work import module_work

SCHEDULE = Pass("schedule", lambda m, ctx: schedule_module(m, ctx.machine, ctx.units), level=0)
PASSES: Final = (*PIPELINE, SCHEDULE)
"""All passes between the importer and the planner."""

_LOWERED: Final = 1 + [p.name for p in PASSES].index("lower")

PORTABLE: Final = [p.asks is nothing for p in PIPELINE].index(False)
"""So many passes come before the first that asks a machine: what a package has done (docs/portable.md)."""

ANY_TARGET: Final = ""
"""The target in the head of a package's dump."""


@dataclass(frozen=True)
class Compilation:
    """The state of a compile between two passes.

    place: how many of PASSES are done or skipped. source: SHA-256 of the model's file. quantised, halved,
    groups: fields of the manifest that importer and passes find out (the pass `half` fills `halved`). work:
    of each kernel, counted before they are scheduled. unscheduled: the module before the schedule, where a
    description is asked for that needs it. states: the states that this module has a part in. asked: what the
    schedule was asked about each kernel, and what it answered. level: the target of this variant, where the
    request's has several. op_types: by op type of the model the origins of its nodes, where rules of
    placement may name it. idle: the patterns of such rules that fit no kernel.
    """

    request: Request
    module: Module
    source: str
    place: int = 0
    quantised: Mapping[str, Any] = field(default_factory=lambda: quantized_summary(()))
    halved: dict[str, Any] = field(default_factory=dict)
    work: dict[str, Any] = field(default_factory=dict)
    groups: Mapping[str, Any] | None = None
    op_types: Mapping[str, Collection[str]] = field(default_factory=dict)
    unscheduled: Module | None = None
    states: tuple[StateUse, ...] = ()
    asked: dict[str, Recalled] = field(default_factory=dict)
    idle: dict[str, None] = field(default_factory=dict)
    level: str = ""

    def head(self) -> dict[str, Any]:
        """The head of a dump: all of it but the module."""
        from smelt import __version__

        r = self.request
        asked = {name: getattr(r, name) for name in (*FIXED, *LATE_OPTIONS)}
        # before a machine is asked the module is that of all variants, after it of one
        whole = self.place <= PORTABLE
        spec = None if r.portable else parse_target(r.target if whole else self.level or r.target)
        asked |= {"target": str(spec or ANY_TARGET), "name": r.name or Path(r.source).stem}
        asked |= {"fallback": whole and r.fallback, "choose": whole and r.choose}
        return {
            "smelt": __version__,
            "place": self.place,
            "after": PASSES[self.place - 1].name if self.place else "",
            "source": self.source,
            "host": _host_mark(spec) if spec else "",
            "request": {**asked, "dims": dict(r.dims), "state": dict(r.state), "entry": r.entry},
            "quantised": dict(self.quantised),
            "fp16": self.halved,
            "groups": self.groups,
            "work": self.work,
        } | ({"op_types": {k: sorted(v) for k, v in sorted(self.op_types.items())}} if self.op_types else {})

    def placed(self) -> list[list[str]]:
        """The rules of placement, as `place` takes them: those of an entry name it."""
        start = f"{self.request.entry}/" if self.request.entry else ""
        return [[start + pattern, unit] for pattern, unit in self.request.place]

    def dump(self) -> str:
        """The text of a dump; it refers to weights in the module's store."""
        return dump_text(self.module, self.head())

    def write(self, path: Path) -> None:
        """Write a dump, with its weights beside it. Raises SmeltError where that fails."""
        write_dump(path, self.module, self.head())

    def advanced(self, name: str, module: Module) -> Compilation:
        """The compile after the pass of this name, which returned this module."""
        done = replace(self, module=module, place=after(self.place, name))
        if done.place == len(PIPELINE):
            done.work.clear()  # what an earlier variant had is not of this one
            done.work.update(module_work(module))
        return done

    def context(self, units: Mapping[str, Machine], default: str) -> Context:
        """The context of the passes. default: the unit that kernels run on unless placed elsewhere.
        SMELT_DEBUG verifies the result of each pass, SMELT_DUMP writes it."""
        r = self.request
        options = Options(
            level=r.opt, fp16=r.fp16, libraries=r.libraries, fast=r.fast_math, place=r.place,
            op_types=self.op_types, states=tuple((s.input, s.output) for s in self.states),
            flush=not r.keep_subnormals,
        )  # fmt: skip
        hooks = (half.reporter(self.halved),) if r.fp16 else ()
        folder = os.environ.get("SMELT_DUMP")
        dump = PassDumps(Path(folder) / r.entry, self) if folder else None
        context = Context(units[default], options, on_pass=hooks, dump=dump, units=units, unit=default)
        if r.place:
            context = context.with_(on_pass=(*hooks, place.idle_reporter(self.idle, context)))
        return context.from_environment()

    def own(self, passes: Sequence[Pass], spread: SpreadOut = serially) -> tuple[Pass, ...]:
        """The passes with the schedule replaced by one that takes the request's schedules, and notes in
        `asked` what it did. spread: computes schedules."""

        def schedule(module: Module, ctx: Context) -> Module:
            spec, threads = parse_target(self.request.target), self.request.threads
            names = {unit: machine_text(spec, m, threads) for unit, m in ctx.units.items()}
            done = schedule_by(module, ctx.machine, ctx.units, Recall(self.book, names), spread)
            self.asked.clear()  # what an earlier variant had is not of this one
            self.asked.update(done.asked)
            return done.module

        return tuple(replace(p, run=schedule) if p is SCHEDULE else p for p in passes)

    @property
    def book(self) -> Book:
        """The request's schedules. Raises SmeltError(kind='invalid')."""
        return parse_book(self.request.schedules) if self.request.schedules else Book()

    def portable(self) -> Compilation:
        """The compile after the passes that ask no machine."""
        context = self.context({CPU: NAIVE.machine}, CPU)
        module = run_pipeline(self.module, PASSES[self.place : PORTABLE], context)
        verify(module, "graph")
        return replace(self, module=module, place=PORTABLE)

    def lowered(
        self, units: Mapping[str, Machine], default: str, progress: Callable[[str], None]
    ) -> Compilation:
        """The compile after those PASSES that come before the schedule."""
        return lowered_together([(self, units, default)], progress)[0]

    def finished(
        self, units: Mapping[str, Machine], default: str, progress: Callable[[str], None]
    ) -> Compilation:
        """The compile after all remaining PASSES."""
        lowered = self.lowered(units, default, progress)
        progress("schedule")
        return lowered.scheduled(units, default)

    def scheduled(
        self, units: Mapping[str, Machine], default: str, spread: SpreadOut = serially
    ) -> Compilation:
        """The compile after the PASSES from the schedule on. spread: computes schedules."""
        # SMELT_DEBUG stops here: the verifier cannot prove all that schedules make
        context = self.context(units, default).with_(verify=False)
        module = run_pipeline(self.module, self.own(PASSES[self.place :], spread), context)
        before = self.module if self.request.describe and self.place < len(PASSES) else None
        return replace(self, module=module, place=len(PASSES), unscheduled=before, asked=dict(self.asked))


def lowered_together(
    variants: Sequence[tuple[Compilation, Mapping[str, Machine], str]], progress: Callable[[str], None]
) -> list[Compilation]:
    """Compiles of one module, each for its units and its default unit, after those PASSES that come before
    the schedule. They share what is the same for all that the passes learn of their machines."""
    first, end = variants[0][0], len(PIPELINE)
    if first.place > end:
        return [c for c, _, _ in variants]
    progress("optimise")
    contexts = [c.context(units, default) for c, units, default in variants]
    modules = run_together(first.module, PASSES[first.place : end], contexts)
    work: dict[int, Mapping[str, Any]] = {}
    for module in {id(m): m for m in modules}.values():
        verify(module, "lowered")  # 1 to 3 % of a compile; a size read too early would be a wrong answer
        work[id(module)] = module_work(module)
    done = []
    for (c, _, _), module in zip(variants, modules, strict=True):
        c.work.clear()  # what an earlier variant had is not of this one
        c.work.update(work[id(module)])
        done.append(replace(c, module=module, place=end))
    return done


class PassDumps:
    """A hook that writes a dump after each pass: NN-pass.smelt."""

    def __init__(self, folder: Path, begun: Compilation) -> None:
        self.folder = folder
        self.done = begun

    def __call__(self, module: Module, name: str) -> None:
        self.done = self.done.advanced(name, module)
        self.folder.mkdir(parents=True, exist_ok=True)  # an entry has its own
        self.done.write(self.folder / f"{self.done.place - 1:02d}-{name}{DUMP_SUFFIX}")


def after(place: int, name: str) -> int:
    """The place after the next pass of that name. It is the given place where PASSES has no such pass, or
    where a pass that no compile may skip lies in between."""
    for k, p in enumerate(PASSES[place:], place + 1):
        if p.name == name:
            return k
        if p.level == 0:
            break
    return place


# ---------------------------------------------------------------- from a model


def imported(request: Request) -> Compilation:
    """Import an ONNX file: the compile before its first pass. Raises SmeltError."""
    module, named = import_named(
        request.source, dict(request.dims), outputs=request.outputs, flush=not request.keep_subnormals
    )
    tensors = (*(v.origin or v.name for v in module.main.inputs), *module.main.output_names)
    # what a model calls so itself is a plain tensor to `interface`; without such names it need not be asked
    groups = None
    if any(map(stands_for_more, tensors)):
        groups = group_rows(*interface(request.source, module.main.output_names))
    if request.state and not request.entry:
        _check_kinds((n for pair in request.state.items() for n in pair), groups or {})
        with_state(module, request.state, module_facts(module))
    found = quantized_summary(quantized_products(module))
    op_types = named if request.place or request.portable else {}
    source = hash_file(Path(request.source))
    return Compilation(request, module, source, quantised=found, groups=groups, op_types=op_types)


def _check_kinds(names: Iterable[str], groups: Mapping[str, Any]) -> None:
    """Raise SmeltError where one of these inputs or outputs is no tensor."""
    named = {n: g["kind"] for side in groups.values() for g in side for n in (g["name"], *g["parts"])}
    for name in names:
        if name in named:
            kind = named[name]
            raise SmeltError(f"state: '{name}' is of kind '{kind}'; only a tensor of numbers can be state")


def shared_state(
    begun: Mapping[str, Compilation], pairs: Mapping[str, str]
) -> dict[str, tuple[Module, tuple[StateUse, ...]]]:
    """Entry -> (its module with the state last among inputs and outputs, its states). pairs: input -> the
    output that replaces it. Raises SmeltError for an impossible pair."""
    for c in begun.values():
        names = (entry_part(n, begun)[1] for pair in pairs.items() for n in pair)
        _check_kinds(names, c.groups or {})
    facts = {name: module_facts(c.module) for name, c in begun.items()}
    return with_shared_state({name: c.module for name, c in begun.items()}, pairs, facts)


# ---------------------------------------------------------------- from a dump

FIXED: Final = (
    "target", "dims", "opt", "fp16", "fast_math", "keep_subnormals", "libraries", "outputs", "place",
)  # fmt: skip
"""Options that passes depend on: a dump is compiled with those that it was begun with."""
SHARED: Final = ("target", "opt", "fp16", "fast_math", "keep_subnormals", "libraries")
"""Those of them that entries cannot have of their own."""
LATE_OPTIONS: Final = ("threads", "static", "name", "prefix", "state", "fallback", "choose")
"""Options that no pass reads."""
OPEN: Final = ("target", "libraries", "place")
"""Those of FIXED that no pass before PORTABLE reads: a package leaves them open."""

_HEAD: Final = fields(
    {
        "smelt": text, "place": whole_number(0, len(PASSES)), "after": text, "source": sha256,
        "request": fields({
            "target": text, "dims": table(text, lambda value, at: None), "opt": whole_number(0, 3),
            "fp16": flag, "fast_math": list_of(text), "keep_subnormals": flag, "libraries": flag,
            "outputs": list_of(text),
            "place": list_of(list_of(text)),
            "threads": maybe(whole_number(1)), "static": flag, "name": text, "prefix": text,
            "state": table(text, text), "entry": text, "fallback": flag, "choose": flag,
        }),
        "quantised": QUANTISED, "fp16": maybe(HALVED, {}), "groups": maybe(GROUPS),
    },
    {"host": text, "work": table(text, KERNEL_WORK), "op_types": table(text, list_of(text))},
)  # fmt: skip


def machine_text(spec: TargetSpec, machine: Machine, threads: int | None) -> str:
    """What a machine is called in files of schedules: the processor's name, the machine that schedules see, a
    hash of its exact features and of all that schedules may ask it, and the threads."""
    asked = {f.name: getattr(machine, f.name) for f in dataclass_fields(machine) if f.name not in _NOT_ASKED}
    asked["costs"] = sorted(machine.costs.items())
    exact = f"{spec.cpu} {spec.features} {asked}"
    own = hashlib.sha256(exact.encode()).hexdigest()[:8]
    return f"{spec.platform.name}:{spec.processor} {machine.name} {own} threads {threads or 'default'}"


_NOT_ASKED: Final = ("residency", "operations", "bandwidth", "figures", "chaining")
"""Fields of a Machine that estimates and chains of launches read, and no schedule of a kernel."""


def _host_mark(spec: TargetSpec) -> str:
    """A hash of a processor's exact features, which no name of a target tells; '' for one that is named."""
    named = parse_target(str(spec), ask=False)
    return "" if spec == named else hashlib.sha256(f"{spec.cpu} {spec.features}".encode()).hexdigest()


def is_dump(source: str) -> bool:
    """Whether a file to compile is a dump."""
    return source.endswith(DUMP_SUFFIX)


def resumed(request: Request, given: str | None = None) -> Compilation:
    """Continue a compile from the dump in the request's file; given: from this text, whose weights are in the
    store of the current folder. The dump's own options hold. Where the request sets one of FIXED, it must be
    the same. Plug-ins that a dump names are not loaded.

    A text without a head is a module alone: the request's options hold, and the compile continues after the
    last pass whose result has such nodes and kernels. Raises SmeltError(kind='invalid').
    """
    found = _read(Path(request.source)) if given is None else parse_dump(given, WeightStore(Path.cwd()))
    begun = _headless(request, found) if found.head is None else _with_head(request, found, found.head)
    if request.schedules and begun.place == len(PASSES):
        raise SmeltError(
            "the kernels of this .smelt file are scheduled already",
            hint="leave --schedules out, or give it to the compile of a dump from before the pass 'schedule'",
        )
    _hold(begun, found.edited)
    if found.head is None and begun.place < _LOWERED:
        begun = replace(begun, quantised=quantized_summary(quantized_products(begun.module)))
    return begun


def _read(path: Path) -> Dump:
    package = package_of(path)
    if package is None:
        return read_dump(path)
    return read_dump(path, PackedWeights(package.weights, package.manifest["weights"]["places"]))


def _headless(request: Request, found: Dump) -> Compilation:
    if request.dims or request.outputs:
        raise SmeltError(
            "dims and outputs of a .smelt file are what its text says",
            hint="edit its lines 'sym' and the outputs of '@main'; --dim and --tap are for ONNX models",
        )
    nodes = [n for g in found.module.graphs.values() for n in g.walk()]
    place = 0
    if found.module.kernels and all(n.op in LOWERED for n in nodes):
        scheduled = any(k.schedule for k in found.module.kernels.values())
        place = len(PASSES) if scheduled else _LOWERED
        if scheduled and request.fp16:
            raise SmeltError("the kernels of this .smelt file are scheduled, and --fp16 comes before that")
    return Compilation(request, found.module, _text_hash(found), place)


def _with_head(request: Request, found: Dump, head: Mapping[str, Any]) -> Compilation:
    from smelt import __version__

    try:
        _HEAD(head, "the head")
    except ValueError as e:
        raise SmeltError(f"this dump cannot be resumed: {e}", hint=_AGAIN) from None
    place: int = head["place"]
    if head["smelt"] != __version__ or head["after"] != (PASSES[place - 1].name if place else ""):
        raise SmeltError(
            f"the dump is of smelt {head['smelt']} after pass {place}, '{head['after']}', and this smelt "
            f"{__version__} has no such place",
            hint=_AGAIN,
        )
    source = _text_hash(found) if found.edited else head["source"]
    made = _request(head["request"])
    if head.get("host") and head["host"] == _host_mark(parse_target("host")):
        devices = parse_target(made.target).devices  # the same machine again
        made = replace(made, target="+".join(("host", *devices)))
    if head["request"]["entry"] and not request.entry:
        made = replace(made, state={})  # which is about all entries together
    own = _merged(request, made)
    work = {} if found.edited else dict(head.get("work", {}))
    quantised, halved, groups = head["quantised"], head["fp16"], head["groups"]
    op_types = head.get("op_types", {})
    return Compilation(own, found.module, source, place, quantised, halved, work, groups, op_types)


def resumed_request(request: Request, begun: Mapping[str, Compilation]) -> Request:
    """The request for all entries together, with the options of their dumps. Raises SmeltError where these
    differ in what a library has one of."""
    first, *others = (c.request for c in begun.values())
    for own in others:
        for name in (*SHARED, *LATE_OPTIONS):
            a, b = getattr(first, name), getattr(own, name)
            if a != b:
                raise SmeltError(
                    f"the dumps of the entries were made with different values of {name}: {a!r} and {b!r}",
                    hint="use dumps of one compile, or compile the models again",
                )
    if not request.entries:
        return first
    source, entries = request.source, request.entries
    return replace(first, source=source, entries=entries, entry="", dims={}, outputs=(), place=())


_AGAIN: Final = "write the dump again, by a compile with SMELT_DUMP or by 'smelt opt MODEL -o OUT.smelt'"


def _request(made: Mapping[str, Any]) -> Request:
    """The request in a dump's head. Raises SmeltError for options that no compile takes."""
    own = {name: made[name] for name in (*FIXED, *LATE_OPTIONS)}
    asked = Request.from_json(json.dumps({**own, "source": "", "plugins": ()}))
    if asked.target != ANY_TARGET:
        parse_target(asked.target)
    fast_parts(asked.fast_math)
    if asked.prefix:
        check_name(asked.prefix)
    return asked


def _merged(request: Request, made: Request) -> Request:
    """The request with the dump's options in place of those that it leaves at their default."""
    plain, changes = Request(source=""), {}
    open_ones = OPEN if made.target == ANY_TARGET else ()
    for name in (n for n in (*FIXED, *LATE_OPTIONS) if n not in open_ones):
        asked, begun = getattr(request, name), getattr(made, name)
        given = asked != getattr(plain, name) and (name != "name" or request.prefix)
        same = asked == begun or (name == "target" and _target_text(asked) == _target_text(begun))
        if not given:
            changes[name] = begun
        elif name in FIXED and not same:
            raise SmeltError(
                f"the dump was made with {name} {begun!r}, found {asked!r}",
                hint="leave the option out, or compile the model again with the other one",
            )
    return replace(request, **changes)


def _target_text(target: str) -> str:
    return str(parse_target(target))


def _text_hash(found: Dump) -> str:
    """SHA-256 of the text of a module that comes from no ONNX file."""
    return hashlib.sha256(print_module(found.module).encode()).hexdigest()


def _hold(begun: Compilation, edited: bool) -> None:
    """Verify the module of a text by the rules of modules and ops. Raises SmeltError(kind='invalid')."""
    module = begun.module
    for name in sorted({n.op for g in module.graphs.values() for n in g.walk()}):
        if core_op(name) is None and name not in STRUCTURAL | LOWERED:
            hint = "a plug-in's op needs the plug-in: plugins=[...] or SMELT_PLUGINS; no dump loads one"
            raise SmeltError(f"there is no op '{name}'", hint=hint)
    graph, last = begun.place < _LOWERED, begun.place == len(PASSES)
    try:
        # K7 cannot prove all that schedules make: what nobody has changed since is taken at its word
        if edited or not last:
            verify(module, "graph" if graph else "scheduled" if last else "lowered")
        recheck(module)
        if edited and graph:
            # formulas meet attributes that no pass has written, and may read what is not there
            verify(lower(expand(module, NAIVE), NAIVE), "lowered")
        _check_groups(module, begun.groups or {})
    except MemoryError:
        raise
    except RecursionError:
        raise SmeltError("the text nests too deeply") from None
    except Exception as e:  # rules take attributes for what each op says that they are; a text has any
        why = e.message.split("\n")[0] if isinstance(e, SmeltError) else f"{type(e).__name__}: {e}"
        raise SmeltError(f"the text is no sound module: {why}", node=getattr(e, "node", None)) from None


def _check_groups(module: Module, groups: Mapping[str, Any]) -> None:
    g = module.main
    inputs = {v.origin or v.name[1:]: v.type.rank for v in g.inputs}
    outputs = {n: t.rank for n, t in zip(g.output_names, module.output_types(), strict=False)}
    for side, ranks in (("inputs", inputs), ("outputs", outputs)):
        check_groups(groups.get(side, ()), ranks, f"the head: groups.{side}")
