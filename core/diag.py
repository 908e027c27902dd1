"""The one exception that users see: what went wrong, where, found, wanted, and what to do next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["invalid", "unsupported", "shape", "device", "infra", "internal"]


@dataclass(frozen=True, slots=True)
class Problem:
    """One finding about a model: `message` by the rules of the house, `node` an ONNX node name.

    inputs: what the node reads, with element types and dims: 'x: f32[batch, 3, h, w]'.
    """

    message: str
    kind: Kind = "invalid"
    node: str | None = None
    hint: str | None = None
    inputs: tuple[str, ...] = ()

    def __str__(self) -> str:
        where = f"node '{self.node}': " if self.node else ""
        return f"{where}{self.message}" + (f"; {self.hint}" if self.hint else "")


class SmeltError(Exception):
    """Everything that is not smelt's own bug.

    kind: 'invalid' (the file or an argument is wrong), 'unsupported' (right, but smelt cannot do it),
    'shape' (run-time inputs do not fit), 'device', 'infra' (link, disk), 'internal' (smelt's bug).
    problems: all findings when there is more than one (an unsupported model lists every node).
    """

    def __init__(
        self,
        message: str,
        *,
        kind: Kind = "invalid",
        node: str | None = None,
        hint: str | None = None,
        problems: tuple[Problem, ...] = (),
    ) -> None:
        self.kind: Kind = kind
        self.node = node
        self.hint = hint
        self.message = message
        self.problems = problems or (Problem(message, kind, node, hint),)
        super().__init__(str(Problem(message, kind, node, hint)))

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (self.message, self.kind, self.node, self.hint, self.problems))


def _rebuild(
    message: str, kind: Kind, node: str | None, hint: str | None, problems: tuple[Problem, ...]
) -> SmeltError:
    return SmeltError(message, kind=kind, node=node, hint=hint, problems=problems)


def unsupported(what: str, *, node: str | None = None, try_: str | None = None) -> SmeltError:
    """The refusal of something legal that smelt cannot do; `try_` names a way out."""
    return SmeltError(what, kind="unsupported", node=node, hint=f"try {try_}" if try_ else None)


def invalid(what: str, *, node: str | None = None, hint: str | None = None) -> SmeltError:
    """The refusal of something that no runtime could accept."""
    return SmeltError(what, kind="invalid", node=node, hint=hint)


def merge(problems: tuple[Problem, ...]) -> SmeltError:
    """One error that carries every problem; its kind is the first one's."""
    assert problems
    first = problems[0]
    if len(problems) == 1:
        return SmeltError(first.message, kind=first.kind, node=first.node, hint=first.hint)
    lines = "\n".join(f"  {p}" for p in problems)
    return SmeltError(f"{len(problems)} problems:\n{lines}", kind=first.kind, problems=problems)
