"""Results of a network in words: its speedups, file sizes and the names of its variants."""

from stages.common.reporting.results import BASELINE, verdict


def speeds(cells):
    """Return the speedups in words: "1.9x faster at batch 1 and 2.2x at batch 32", slower ones as times fp32's time.

    What is undecided is told together, with the widest ends of the intervals.
    """
    words, before = [], None
    undecided = {batch: cell for batch, cell in cells.items() if verdict(cell) == "undecided"}
    for batch, cell in cells.items():
        state = verdict(cell)
        if state == "undecided":
            if batch == next(iter(undecided)):
                words.append(undecided_at(undecided))
        else:
            factor = cell["speedup"] if state == "faster" else 1 / cell["speedup"]
            words.append(f"{times(factor)}{'' if state == before else f' {state}'} at batch {batch}")
        before = state
    return listed(words)


def times(factor):
    """Return a factor in words: "1.9x", and "1.02x" where "1.0x" would say nothing."""
    return f"{factor:.1f}x" if factor >= 1.1 else f"{factor:.2f}x"


def undecided_at(cells):
    """Return the batch sizes at which the speed is undecided: "undecided at batches 1, 4 and 8 (0.95x to 1.08x)"."""
    low, high = (
        min(cell["speedup_low"] for cell in cells.values()),
        max(cell["speedup_high"] for cell in cells.values()),
    )
    return (
        f"undecided at batch{'es' if len(cells) > 1 else ''} {listed([*map(str, cells)])} ({low:.2f}x to {high:.2f}x)"
    )


def smaller(found, name):
    """Return the file size against fp32's in words."""
    ratio = found["variants"][BASELINE]["verify"]["size_bytes"] / found["variants"][name]["verify"]["size_bytes"]
    return f"{times(ratio)} smaller" if ratio >= 1 else f"{times(1 / ratio)} larger"


def listed(names):
    """Return names in words: "a", "a and b", "a, b and c"."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
