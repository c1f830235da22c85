"""Rows as a document in Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import get_args

from examples.reproduction.row import CLOSE, MEANING, Row, Verdict, count


@dataclass(frozen=True)
class Section:
    """``pictures``: file name without suffix -> what it shows. ``after`` follows the table and its notes."""

    title: str
    text: str
    rows: Sequence[Row] = ()
    pictures: dict[str, str] = field(default_factory=dict)
    after: str = ""


def document(head: str, sections: Sequence[Section], folder: str, tail: str) -> str:
    """The whole text. ``folder``: of the pictures, seen from the document."""
    every = [row for section in sections for row in section.rows]
    sentences = list(dict.fromkeys(row.said for row in every))
    numbers = {said: n for n, said in enumerate(sentences, 1)}
    parts = [head.strip(), _meanings(), _summary(sections), count(every)]
    for section in sections:
        parts += [f"## {section.title}", section.text.strip()]
        if section.rows:
            parts.append(_table(section.rows, numbers))
        if notes := _notes(section.rows):
            parts.append(notes)
        parts += [f"![{shows}]({folder}/{name}.svg)" for name, shows in section.pictures.items()]
        if section.after:
            parts.append(section.after.strip())
    parts += [tail.strip(), "## The paper's sentences", _sentences(numbers)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _meanings() -> str:
    return "\n".join(["| kind | |", "|---|---|", *(f"| {kind} | {meaning} |" for kind, meaning in MEANING.items())])


def _summary(sections: Sequence[Section]) -> str:
    """What came out, section by section: sizes that are merely added up do not hide what a model misses."""
    columns = ("predictions", "as printed", f"within {100 * CLOSE:.0f} %", "further off", "input", "follows")
    lines = [f"| | {' | '.join((*columns, 'not reproducible'))} |", "|---|" + "--:|" * (len(columns) + 1)]
    for section in (section for section in sections if section.rows):
        verdicts = [row.verdict for row in section.rows]
        kinds = [row.kind for row in section.rows]
        numbers = (
            kinds.count("prediction"),
            *(verdicts.count(verdict) for verdict in get_args(Verdict)),
            *(kinds.count(kind) for kind in ("input", "follows", "not reproducible")),
        )
        anchor = section.title.lower().replace(" ", "-")
        lines.append(f"| [{section.title}](#{anchor}) | {' | '.join(map(str, numbers))} |")
    return "\n".join(lines)


def _table(rows: Sequence[Row], numbers: dict[object, int]) -> str:
    whys = _reasons(rows)
    lines = ["| figure | paper | ours | difference | kind | from |", "|---|--:|--:|--:|---|---|"]
    for row in rows:
        note = f" <sup>{whys[row.why]}</sup>" if row.why else ""
        lines.append(
            f"| {row.what}{note} | {stated_text(row)} [[{numbers[row.said]}]](#the-papers-sentences) | "
            f"{ours_text(row)} "
            f"| {difference_text(row)} | {kind_text(row)} | {row.source or '–'} |"
        )
    return "\n".join(lines)


def stated_text(row: Row) -> str:
    """As the paper has it."""
    return f"{'≤ ' if row.at_most else ''}{row.stated}{_unit(row)}"


def ours_text(row: Row) -> str:
    """With as many digits as the paper's, and one more where it is no prediction that came out as printed."""
    if row.ours is None:
        return "–"
    exact = row.verdict == "as printed" or row.kind == "input" or row.unit in ("block", "", "M")
    if exact:  # rounded as the verdict is
        return f"{row.rounded(row.ours):,.{row.digits}f}{_unit(row)}"
    return f"{row.ours:,.{row.digits + 1}f}{_unit(row)}"


def difference_text(row: Row) -> str:
    """Against the stated figure."""
    if row.off_by is None or row.kind == "input":
        return "–"
    if row.verdict == "as printed":
        return "0"
    if row.unit == "block" and row.ours is not None:
        blocks = row.ours - row.paper[1]
        return signed(blocks, 0) if blocks else "0"
    percent = 100 * row.off_by
    return f"{signed(percent, 1 if abs(percent) < 100 else 0)} %"


def signed(value: float, digits: int) -> str:
    """With its sign, if there is one when it is printed."""
    text = f"{abs(value):,.{digits}f}"
    return text if float(text.replace(",", "")) == 0 else f"{'+' if value > 0 else '−'}{text}"


def kind_text(row: Row) -> str:
    """The kind, and of a prediction how it came out."""
    return row.kind if row.verdict is None else f"prediction: **{row.verdict}**"


def _unit(row: Row) -> str:
    if row.unit in ("", "block"):
        return ""
    return row.unit if row.unit == "×" else f" {'/h' if row.unit == 'per hour' else row.unit}"


def _reasons(rows: Sequence[Row]) -> dict[str, str]:
    """Reason -> its letter; rows of one section that share a reason share a note."""
    reasons = list(dict.fromkeys(row.why for row in rows if row.why))
    return {reason: chr(ord("a") + n) for n, reason in enumerate(reasons)}


def _notes(rows: Sequence[Row]) -> str:
    return "\n".join(f"- <sup>{letter}</sup> {reason}" for reason, letter in _reasons(rows).items())


def _sentences(numbers: dict[object, int]) -> str:
    return "\n".join(f"{n}. Section {said.section}: “{said.words}”" for said, n in numbers.items())
