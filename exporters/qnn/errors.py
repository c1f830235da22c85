"""The one error type of `exporters.qnn`: a graph, option or binary that cannot be used, and what to do about it."""

from __future__ import annotations


class QnnError(Exception):
    """What Qualcomm's compiler or this package refuses.

    Every field is a finished phrase for a person, as in `exporters.errors.CheckpointError`:

    - ``what``: what is wrong, in one sentence without the path.
    - ``where``: the file, graph or node.
    - ``expected`` / ``found``: the numbers or names that disagree, or ``""``.
    - ``fix``: what to do next, in the imperative.
    - ``log``: the toolchain's own lines that led to it, in their order; not printed by ``str``.
    - ``too_large``: a smaller tile, or fewer stages in the graph, may be taken.
    - ``stopped``: the limit that ended the work, ``"time"`` or ``"memory"``, else ``""``: another machine may do it, or
      a smaller tile.
    """

    def __init__(
        self,
        what: str,
        *,
        where: str = "",
        expected: str = "",
        found: str = "",
        fix: str = "",
        log: tuple[str, ...] = (),
        too_large: bool = False,
        stopped: str = "",
    ) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.expected = expected
        self.found = found
        self.fix = fix
        self.log = log
        self.too_large = too_large
        self.stopped = stopped

    def fields(self) -> dict[str, str]:
        """The phrases by name, also the empty ones; `QnnError(**fields)` is the same error without its log."""
        return {
            "what": self.what,
            "where": self.where,
            "expected": self.expected,
            "found": self.found,
            "fix": self.fix,
        }

    def __str__(self) -> str:
        said = {name: phrase for name, phrase in self.fields().items() if phrase and name != "what"}
        return "\n".join([self.what, *(f"{name}: {phrase}" for name, phrase in said.items())])
