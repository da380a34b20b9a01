"""Where another toolkit's file is faster than the pipeline's fastest, and what its profile says makes the difference."""

import numpy as np

from stages.benchmark import CONTROL
from stages.common.reporting.tables import Cell, markdown
from stages.common.statistics.intervals import ratio_interval
from stages.common.timing import round_medians
from stages.tools.operator_families import FAMILIES, OUTSIDE, by_family

NOTHING_LOST = "At no batch size is a toolkit's file faster for certain than the fastest of the pipeline's own."


def find_losses(rows, own, others):
    """Return {batch: (own name, other name, (speedup, low, high))} where a file of `others` beats the fastest of `own`.

    `rows`: the timed calls; for certain: the 95 % interval of the per-round ratios is above 1. Of several the fastest.
    """
    medians = round_medians(rows)
    own, losses = [name for name in own if name != CONTROL], {}
    for batch in sorted({batch for _, batch in medians}):
        fastest = min(own, key=lambda name: np.log(medians[name, batch]).mean())
        ratios = {name: ratio_interval(medians[fastest, batch] / medians[name, batch]) for name in others}
        won = {name: found for name, found in ratios.items() if found[1] > 1}
        if won:
            other = max(won, key=lambda name: won[name][0])
            losses[batch] = (fastest, other, won[other])
    return losses


def explain(batch, loss, profiles):
    """Return what a loss is made of, as text: a sentence, and a table by operator family of the rounds with the median call.

    `loss`: a value of find_losses; `profiles`: {name: [{"kernels": [(operator, kernel, microseconds)], "call":
    microseconds}, one a round]} of its two files.
    """
    own, other, (ratio, low, high) = loss
    middle = {
        name: sorted(profiles[name], key=lambda one: one["call"])[len(profiles[name]) // 2] for name in (own, other)
    }
    parts = {name: with_outside(profile) for name, profile in middle.items()}
    whole = middle[own]["call"] - middle[other]["call"]
    if whole > 0:
        gains = _gains(parts[own], parts[other])
        most = max(gains, key=gains.get)
        cause = (
            f"of {whole:,.0f} us that it takes less in a call, {most} makes most, {gains[most]:,.0f} us "
            f"({_time(parts[own], most):,.0f} against {_time(parts[other], most):,.0f}), and so it is in "
            f"{_votes(most, profiles[own], profiles[other])} of {len(profiles[own])} profiled rounds."
        )
    else:
        cause = "the profiled calls do not show it, so that no family is named. Run it again with more --seconds."
    beaten = f"At batch {batch} `{other}` is {ratio:.2f}x ({low:.2f}-{high:.2f}) as fast as `{own}`"
    return f"{beaten}: {cause}\n\n{markdown(_table(own, other, parts, middle))}"


def with_outside(profile):
    """Return by_family of a profile's kernels, and under OUTSIDE what of the call they leave: below 0 if they exceed it."""
    found = by_family(profile["kernels"])
    return found | {OUTSIDE: (profile["call"] - sum(time for time, _ in found.values()), "")}


def _gains(ours, theirs):
    return {family: _time(ours, family) - _time(theirs, family) for family in (*FAMILIES, OUTSIDE)}


def _votes(family, ours, theirs):
    """Return in how many rounds a family gains most."""
    rounds = [_gains(with_outside(one), with_outside(other)) for one, other in zip(ours, theirs, strict=True)]
    return sum(max(gains, key=gains.get) == family for gains in rounds)


def _time(part, family):
    return part.get(family, (0.0, ""))[0]


def _table(own, other, parts, profiles):
    families = [family for family in (*FAMILIES, OUTSIDE) if family in parts[own] or family in parts[other]]
    rows = [_row(family, own, other, parts) for family in families]
    calls, shares = {"family": Cell("timed call")}, {"family": Cell("in kernels")}
    for name in (own, other):
        call = profiles[name]["call"]
        calls[f"{name}, us"] = Cell(f"{call:,.0f}")
        shares[f"{name}, us"] = Cell(f"{1 - _time(parts[name], OUTSIDE) / call:.0%} of it")
    return [*rows, calls, shares]


def _row(family, own, other, parts):
    row = {"family": Cell(family)}
    for name in (own, other):
        time, how = parts[name].get(family, (0.0, ""))
        row |= {f"{name}, us": Cell(f"{time:,.0f}" if family in parts[name] else ""), f"{name} ran": Cell(how)}
    return row
