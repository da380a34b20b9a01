"""A comparison as text for a reader and as JSON for a program."""

import json
from dataclasses import asdict

from stages.common.statistics.multiple import SIGNIFICANCE
from stages.tools.comparison import IDENTICAL

HEADER = ("model", "variant", "quantity", "A", "B", "difference [95 %]", "adjusted p", "verdict")


def table(rows):
    """Return the rows as an aligned table and, below it, why some are not compared. Equal sizes are only counted."""
    lines, equal_sizes = [HEADER], 0
    for row in rows:
        if row.quantity == "size" and row.verdict == IDENTICAL:
            equal_sizes += 1
            continue
        p = "" if row.adjusted_p is None else f"{row.adjusted_p:.2g}"
        lines.append((row.model, row.variant, row.quantity, *values(row), p, row.verdict))
    sizes = sum(row.quantity == "size" for row in rows)
    parts = [aligned(lines)] if lines[1:] else []
    if equal_sizes:
        parts.append("\n" * bool(parts) + f"identical sizes: {equal_sizes} of {sizes}")
    return "\n".join([*parts, *reasons(rows)])


def aligned(lines):
    """Return rows of cells as text in columns."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def values(row):
    """Return the cells A, B and difference of a row."""
    if row.b is None:
        return "", "", ""
    if row.quantity in ("accuracy", "agreement"):
        interval = "" if row.low is None else f" [{100 * row.low:+.2f}, {100 * row.high:+.2f}]"
        return f"{row.a:.2%}", f"{row.b:.2%}", f"{100 * row.difference:+.2f}{interval} points"
    if row.quantity == "size":
        return f"{row.a:,}", f"{row.b:,}", f"{row.difference:+,} bytes"
    if row.quantity == "works":
        return "yes" if row.a else "no", "yes" if row.b else "no", ""
    return f"{row.a:.3f}x", f"{row.b:.3f}x", f"{row.difference:+.1%} [{row.low:+.1%}, {row.high:+.1%}]"


def reasons(rows):
    """Return a line for every reason, with the rows that it stops."""
    stopped = {}
    for row in rows:
        if row.reason:
            stopped.setdefault((row.verdict, row.reason), []).append(f"{row.model} {row.variant} {row.quantity}")
    return [f"\n{verdict}: {', '.join(names)}\n  {reason}" for (verdict, reason), names in stopped.items()]


def report(a, b, rows, only, changed):
    """Return the whole comparison as text. `only`, `changed`: for A and B, the names and files that a reader must know of."""
    lines = [f"A: {title(a)}", f"B: {title(b)}", "", table(rows)]
    for revision, names, files in zip((a, b), only, changed, strict=True):
        if names:
            lines.append(f"\nonly in {revision.name}: {', '.join(names)}")
        if files:
            lines.append(f"\nnote: results of {revision.name} were made before the last change of {', '.join(files)}")
    return "\n".join(lines)


def title(revision):
    """Return a revision's name with its commit."""
    return revision.name if revision.commit is None else f"{revision.name} ({revision.commit[:7]})"


def as_json(a, b, rows, only, changed):
    """Return the whole comparison as strict JSON, every row included."""
    revisions = {
        key: {"name": revision.name, "commit": revision.commit, "only_here": names, "code_changed": files}
        for key, revision, names, files in zip("ab", (a, b), only, changed, strict=True)
    }
    content = {**revisions, "significance": round(SIGNIFICANCE, 6), "rows": [asdict(row) for row in rows]}
    return json.dumps(content, indent=2, allow_nan=False)
