"""What a report is made of: sections of figures and tables, as values without markup."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from markupsafe import Markup


@dataclass(frozen=True)
class Mark:
    """A cell that says yes or no: ``good`` decides its colour, the text says it in words."""

    text: str
    good: bool

    def __str__(self) -> str:
        return self.text


Cell = str | Mark


@dataclass(frozen=True)
class Table:
    """A column whose name starts with '>' is right-aligned, one with '~' may wrap, as in tables on a terminal.

    ``strong``: the row that is emphasised. ``folded``: shown when it is asked for.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""
    strong: int | None = None
    folded: bool = False


@dataclass(frozen=True)
class Picture:
    """A figure: ``svg`` is markup of our own, or an image that `embedded` made of somebody else's."""

    title: str
    svg: Markup


@dataclass(frozen=True)
class Section:
    """A part of the page. ``facts``: name and value. ``headlines``: a number and what it is."""

    title: str
    lead: str = ""
    headlines: Sequence[tuple[str, str]] = ()
    facts: Sequence[tuple[str, str]] = ()
    pictures: Sequence[Picture] = ()
    tables: Sequence[Table] = ()
    notes: Sequence[str] = ()

    @property
    def id(self) -> str:
        """For links within the page."""
        return "".join(c if c.isalnum() else "-" for c in self.title.lower())


@dataclass(frozen=True)
class Page:
    """A whole report. ``origin``: what it was made from, in a sentence."""

    title: str
    subtitle: str
    sections: Sequence[Section]
    origin: str
    version: str
    badges: Sequence[str] = field(default=())
