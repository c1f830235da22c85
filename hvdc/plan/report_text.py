"""Numbers as a report writes them."""

from __future__ import annotations

from hvdc.plan.memory import GIB, MIB


def mib(size: int) -> str:
    """Bytes as MiB."""
    return f"{size / MIB:,.2f}"


def gib(size: int) -> str:
    """Bytes as GiB, or as MiB where that would be next to nothing."""
    return f"{size / GIB:.2f} GiB" if size >= GIB // 10 else f"{size / MIB:.2f} MiB"


def many(count: int, thing: str) -> str:
    """``1 seed``, ``2 seeds``."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def printable(value: object) -> str:
    """Text of others on a page: what cannot be seen, or would turn the text around it, becomes a replacement sign."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in str(value))
