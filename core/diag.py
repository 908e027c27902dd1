"""The one exception that users see: what went wrong, where, found, wanted, and what to do next."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

Kind = Literal["invalid", "unsupported", "shape", "device", "infra", "internal"]

MOST_CHARACTERS = 4_000
"""Characters of a message about a model: names of a megabyte are legal."""
MOST_LINES = 20_000
"""Characters of several problems, or of a traceback."""
MOST_PROBLEMS = 40
"""Problems that a message lists; `SmeltError.problems` holds all."""
WORD = 300
"""Characters of a word, such as a name or a formula."""


def printable(text: str, lines: bool = False) -> str:
    """The text with what no terminal, C comment or log line should be given escaped: control characters, line
    ends (lines: kept), separators other than the blank, marks that change the direction of writing."""
    if text.isprintable():
        return text
    kept = "\n" if lines else ""
    return "".join(c if c.isprintable() or c in kept else c.encode("unicode_escape").decode() for c in text)


def shortened(text: str, most: int = WORD) -> str:
    """The text, or its start and end where it is longer than `most` characters."""
    if len(text) <= most:
        return text
    head, tail = most * 2 // 3, most // 6
    return f"{text[:head]}...[{len(text) - head - tail} characters]...{text[-tail:]}"


def shown(name: str) -> str:
    """A name from a file as messages say it: printable, on one line, short."""
    return printable(shortened(name))


def _bounded(text: str, lines: bool) -> str:
    """A whole message, with names in it that nobody has looked at."""
    if len(text) > WORD:
        text = re.sub(rf"\S{{{WORD + 1},}}", lambda m: shortened(m[0]), text)
    text = shortened(text, MOST_LINES if lines else MOST_CHARACTERS)
    return printable(text, lines)


@dataclass(frozen=True, slots=True)
class Problem:
    """One finding about a model: `message` says what was found and what was wanted, `node` is the ONNX node's
    name.

    inputs: what the node reads, with element types and dims: 'x: f32[batch, 3, h, w]'.
    """

    message: str
    kind: Kind = "invalid"
    node: str | None = None
    hint: str | None = None
    inputs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        text = _bounded(self.message, self.kind not in ("invalid", "unsupported"))
        object.__setattr__(self, "message", text)
        object.__setattr__(self, "node", self.node and shown(self.node))
        object.__setattr__(self, "hint", self.hint and _bounded(self.hint, False))
        object.__setattr__(self, "inputs", tuple(map(shown, self.inputs)))

    def __str__(self) -> str:
        return _sentence(self.node, self.message, self.hint)


class SmeltWarning(UserWarning):
    """What went otherwise than it should have, without harm to the result."""


class SmeltError(Exception):
    """Everything that is not smelt's own bug.

    kind: 'invalid' (the file or an argument is wrong), 'unsupported' (right, but smelt cannot do it),
    'shape' (run-time inputs do not fit), 'device', 'infra' (link, disk), 'internal' (smelt's bug).
    problems: all findings when there is more than one (an unsupported model lists every node).

    Its texts can be printed, and are short, whatever names the model holds. A message has several lines only
    where it lists problems or tells of a failure inside a compiler.
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
        several = len(problems) > 1
        own = Problem("" if several else message, kind, node, hint)
        self.node = own.node
        self.hint = own.hint
        self.message = _bounded(message, True) if several else own.message
        self.problems = problems or (own,)
        super().__init__(_sentence(self.node, self.message, self.hint))

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (self.message, self.kind, self.node, self.hint, self.problems))


def _sentence(node: str | None, message: str, hint: str | None) -> str:
    where = f"node '{node}': " if node else ""
    return f"{where}{message}" + (f"; {hint}" if hint else "")


def _rebuild(
    message: str, kind: Kind, node: str | None, hint: str | None, problems: tuple[Problem, ...]
) -> SmeltError:
    return SmeltError(message, kind=kind, node=node, hint=hint, problems=problems)


@contextmanager
def reading(what: str, kind: Kind = "shape") -> Iterator[None]:
    """Turn any exception that reading a caller's object raises into a SmeltError that names the object: its
    own methods run here (__array__, __dlpack__, __len__, ...), so it may be any."""
    try:
        yield
    except SmeltError:
        raise
    except MemoryError as e:
        raise SmeltError(f"{what}: there is no memory for it: {e}", kind="device") from e
    except Exception as e:
        why = f"{type(e).__name__}: {e}"
        raise SmeltError(f"{what}: cannot be read ({why:.300})", kind=kind) from e


def limit_hint(e: BaseException | None) -> str | None:
    """What to do about the limit of the system that refused something; None where the error tells of none."""
    number = e.errno if isinstance(e, OSError) else None
    if number == errno.EMFILE:
        import resource

        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return f"this process may have {most} files open at a time; allow more ('ulimit -n 1024')"
    return "the system may be out of processes or memory" if number in (errno.EAGAIN, errno.ENOMEM) else None


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
    lines = "\n".join(f"  {shortened(str(p), MOST_CHARACTERS // 4)}" for p in problems[:MOST_PROBLEMS])
    if len(problems) > MOST_PROBLEMS:
        lines += f"\n  ... and {len(problems) - MOST_PROBLEMS} more"
    return SmeltError(f"{len(problems)} problems:\n{lines}", kind=first.kind, problems=problems)
