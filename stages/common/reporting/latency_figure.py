"""The figure of speed against fp32; its docstring says how to read it."""

import math

from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from stages.common.reporting.panels import panels, plt, variant_colours, wrap_titles
from stages.common.reporting.results import BASELINE, verdict

MARKERS = "osD^vP*X<>ph"
STEP, REACH = 0.22, 0.35  # rows: between two markers of a row, and from its middle to the outermost, which stays in it
MOST_TICKS = 8  # that can be read side by side below a panel


def latency_figure(results, variants):
    """Speed against fp32: a panel a network, a row a variant, a marker a batch size, a line its 95 % interval.

    Right of the line at 1 is faster than fp32, left of it slower; an interval that crosses 1 decides nothing. The grey
    band is the control, fp32 timed against itself: a difference no larger than it is this machine's noise.
    """
    most = max(len(found["control"]) for found in results.values())
    figure, axes = panels(results, variants, row_inches=max(0.45, 0.12 + 0.11 * most))
    colours = variant_colours(variants)
    batches = sorted({batch for found in results.values() for batch in found["control"]})
    for axis, (model, found) in zip(axes, results.items(), strict=True):
        control, offsets = found["control"].values(), marker_offsets(found["control"])
        axis.axvspan(
            min(cell["speedup_low"] for cell in control),
            max(cell["speedup_high"] for cell in control),
            color="#CCCCCC",
            lw=0,
        )
        axis.axvline(1, color="black", lw=1)
        for row, variant in enumerate(variants):
            cells = found["variants"][variant]["benchmark"]
            if not cells:
                axis.text(1, row, " does not run here", va="center", color="#666666", style="italic")
            for batch, cell in cells.items():
                y, marker = row + offsets[batch], MARKERS[batches.index(batch) % len(MARKERS)]
                axis.plot([cell["speedup_low"], cell["speedup_high"]], [y, y], color=colours[variant], lw=2)
                axis.plot(cell["speedup"], y, marker, color=colours[variant], ms=6)
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_locator(FixedLocator(speed_ticks(*axis.get_xlim())))
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}x"))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.set_xlabel("speed relative to fp32 (log scale; right of 1 is faster)")
        axis.set_title(f"{model}: {latency_finding(found, variants)}")
    handles = [
        plt.Line2D([], [], marker=MARKERS[place % len(MARKERS)], color="#444444", ls="", label=f"batch {batch}")
        for place, batch in enumerate(batches)
    ]
    handles.append(plt.Rectangle((0, 0), 1, 1, color="#CCCCCC", label="fp32 against itself"))
    columns = min(len(handles), int(figure.get_figwidth() / 1.4))  # inches of an entry
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False)
    wrap_titles(axes)
    return figure


def marker_offsets(batches):
    """Return {batch: offset from the middle of a row, in rows}: side by side, the smallest on top, none outside of it."""
    ordered = sorted(batches)
    step = min(STEP, 2 * REACH / max(1, len(ordered) - 1))
    return {batch: step * (place - (len(ordered) - 1) / 2) for place, batch in enumerate(ordered)}


def speed_ticks(low, high):
    """Return at most MOST_TICKS ticks of a logarithmic axis: powers of two, 1 among them, or finer where few are in it."""
    first, last = math.ceil(math.log2(low)), math.floor(math.log2(high))
    if last - first < 2:
        ticks = [tick for tick in MaxNLocator(MOST_TICKS - 2).tick_values(low, high) if low <= tick <= high]
        if not low < 1 < high or not ticks:
            return ticks
        apart = (ticks[-1] - ticks[0]) / max(1, len(ticks) - 1) / 2
        return sorted([1.0, *(tick for tick in ticks if abs(tick - 1) > apart)])
    step = math.ceil((last - first + 1) / MOST_TICKS)
    ticks = [2.0**power for power in range(first, last + 1) if power % step == 0]
    # a tick beyond 1, where there are speeds but no power of two
    return ticks + [tick for tick in (1.5, 1.2) if last == 0 and tick <= high][:1]


def latency_finding(found, variants):
    """Return in a few words what the panel shows: how many variants are faster or slower at every batch size.

    A copy of fp32, as `tuned` can be, is no int8 file.
    """
    int8 = [found["variants"][name] for name in variants if found["variants"][name].get("same_file_as") != BASELINE]
    verdicts = [{verdict(cell) for cell in one["benchmark"].values()} for one in int8]
    timed = [seen for seen in verdicts if seen]
    faster, slower = timed.count({"faster"}), timed.count({"slower"})
    rest = len(timed) - faster - slower
    words = [
        f"{faster} of {len(timed)} int8 file{' is' if len(timed) == 1 else 's are'} faster than fp32",
        f"{slower} slower",
    ]
    doubtful = "depends on the batch or is undecided" if rest == 1 else "depend on the batch or are undecided"
    return ", ".join(words + ([f"{rest} {doubtful}"] if rest else []))
