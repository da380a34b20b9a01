"""One sentence a network: which file to use on this machine, and what it gains and costs. It follows from the metrics."""

import math

from stages.common.reporting.results import BASELINE, agreement, verdict
from stages.common.statistics.multiple import SIGNIFICANCE, holm

CLEARLY_SMALLER = 0.95  # of the size
LEAST_AGREEMENT = (
    0.99  # MLPerf Inference asks a quantized model for 99 % of fp32's accuracy; no labels, no better measure
)


def sentence(model, found, variants):
    """Return the verdict on a network as one sentence that names the best variant, or says why there is none.

    Of those that run here without a detectable loss of accuracy the fastest on average over the batch sizes (geometric
    mean) is looked for. Of those that cannot be told from it by the intervals, nor are slower than another such one, the
    best is the clearly smallest, and the first of `variants` where sizes are about equal. A loss is
    detectable where the whole interval of the change is below zero; without labels, where that of the agreement with
    fp32 is below LEAST_AGREEMENT, since a change of accuracy is never larger than the share of changed predictions.
    """
    runs = [name for name in variants if found["variants"][name]["benchmark"]]
    timed = [name for name in runs if not is_fp32(found, name)]
    if not timed:
        why = "is better than fp32, of which `tuned` is a copy" if runs else "runs on this onnxruntime"
        return f"No int8 file of {model} {why}: keep fp32."
    sound = [name for name in timed if not loses_accuracy(found["variants"][name]["evaluate"])]
    if not sound and not has_accuracy(found["variants"][timed[0]]["evaluate"]):
        most = max(timed, key=lambda name: found["variants"][name]["evaluate"]["argmax_agreement"])
        return f"Every int8 file of {model} decides otherwise than fp32 too often, `{most}` the least: it {cost(found, most)}; keep fp32, or measure with labels."
    if not sound:
        least = max(timed, key=lambda name: found["variants"][name]["evaluate"]["accuracy_change"])
        return f"Every int8 file of {model} loses accuracy, `{least}` the least with {change(found, least)}: keep fp32, or accept that loss."
    cells_of = {name: found["variants"][name]["benchmark"] for name in sound}
    fastest = max(sound, key=lambda name: mean_speedup(cells_of[name]))
    tied = [name for name in sound if overlap(cells_of[name], cells_of[fastest])]
    tied = [name for name in tied if not any(beats(cells_of[other], cells_of[name]) for other in tied)]
    best = first_of_the_smallest(found, tied)
    cells = cells_of[best]
    others = [name for name in tied if name != best and overlap(cells_of[name], cells)]
    verdicts = {batch: verdict(cell) for batch, cell in cells.items()}
    is_fastest = mean_speedup(cells) >= mean_speedup(cells_of[fastest])
    what = f"{smaller(found, best)} and {cost(found, best)}{as_fast(found, best, others)}{faster_with_loss(found, timed, best)}"
    if set(verdicts.values()) == {"faster"}:
        return f"On this machine use `{best}` for {model}: {speeds(cells)}, {what}."
    faster = {batch: cell for batch, cell in cells.items() if verdicts[batch] == "faster"}
    rest = {batch: cell for batch, cell in cells.items() if batch not in faster}
    elsewhere = faster_at(cells_of, rest)
    if faster:
        also = f"; {elsewhere}" if elsewhere else ""
        return f"For {model} int8 pays at some batch sizes only: `{best}` is {speeds(faster)} but {speeds(rest)}, {what}{also}."
    if elsewhere:
        return f"For {model} int8 pays at some batch sizes and in some files only: {elsewhere}; on average `{best}` is {'the fastest' if is_fastest else 'among the fastest'}: {speeds(cells)}, {what}."
    if "slower" in verdicts.values():
        named = f"the fastest, `{best}`," if is_fastest else f"`{best}`, among the fastest,"
        return f"For {model} int8 buys size, not speed, on this machine: {named} is {speeds(cells)}, {what}{smallest(found, sound, best)}."
    return f"For {model} no difference in speed can be shown: `{best}` is {speeds(cells)}, {what}."


def is_fp32(found, name):
    """Return whether a variant is a copy of fp32, as `tuned` is where nothing is faster: same size, same logits."""
    sizes = {found["variants"][variant]["verify"]["size_bytes"] for variant in (BASELINE, name)}
    return len(sizes) == 1 and found["variants"][name]["evaluate"].get("max_abs_logit_difference") == 0


def first_of_the_smallest(found, names):
    """Return the first of `names` than whose file none of the others' is clearly smaller."""
    sizes = {name: found["variants"][name]["verify"]["size_bytes"] for name in names}
    return next(name for name in names if min(sizes.values()) > CLEARLY_SMALLER * sizes[name])


def faster_at(cells_of, batches):
    """Return which variants are faster than fp32 for certain at any of `batches`, the fastest at each, in words.

    Of a variant all batch sizes are told: it may be slower at others. Returns "" where there is none.
    """
    best = []
    for batch in batches:
        certain = [name for name in cells_of if batch in cells_of[name] and verdict(cells_of[name][batch]) == "faster"]
        best += [max(certain, key=lambda name: cells_of[name][batch]["speedup"])] if certain else []
    return "; ".join(f"`{name}` is {speeds(cells_of[name])}" for name in dict.fromkeys(best))


def overlap(cells, others):
    """Return whether the intervals of two variants overlap at every batch size that both were timed at."""
    return all(
        cells[batch]["speedup_low"] <= others[batch]["speedup_high"]
        and others[batch]["speedup_low"] <= cells[batch]["speedup_high"]
        for batch in cells
        if batch in others
    )


def beats(cells, others):
    """Return whether a variant is faster for certain than another at some batch size, and slower at none."""
    both = [(cell, others[batch]) for batch, cell in cells.items() if batch in others]
    return any(cell["speedup_low"] > other["speedup_high"] for cell, other in both) and not any(
        cell["speedup_high"] < other["speedup_low"] for cell, other in both
    )


def as_fast(found, best, others):
    """Return which other variants are as fast as the best, or its very file, in words."""
    file_of = {name: found["variants"][name].get("same_file_as", name) for name in (best, *others)}
    copies = [f"`{name}`" for name in others if file_of[name] == file_of[best]]
    tied = [f"`{name}`" for name in others if file_of[name] != file_of[best]]
    words = f"; {listed(copies)} {'is' if len(copies) == 1 else 'are'} the same file" if copies else ""
    return words + (f"; {listed(tied)} cannot be told from it in speed" if tied else "")


def listed(names):
    """Return names in words."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def loses_accuracy(judged):
    """Return whether the whole 95 % interval of the accuracy change is below zero, or what stands for it without labels."""
    if not has_accuracy(judged):
        return agreement(judged)[2] < LEAST_AGREEMENT
    return judged.get("change_high", 0) < 0


def gains_accuracy(found, name):
    """Return whether a variant is more often right than fp32, beyond what the best of so many would be by chance.

    McNemar's p-values of all variants are corrected together. Losses are not: there the cautious answer is to see one.
    """
    judged = {
        variant: cells["evaluate"] for variant, cells in found["variants"].items() if "mcnemar_p" in cells["evaluate"]
    }
    adjusted = dict(zip(judged, holm([cells["mcnemar_p"] for cells in judged.values()]), strict=True))
    return name in judged and judged[name]["accuracy_change"] > 0 and adjusted[name] < SIGNIFICANCE


def has_accuracy(judged):
    """Return whether a variant's accuracy could be measured: not without labels."""
    return "changed" not in judged or "accuracy_change" in judged


def mean_speedup(cells):
    """Return the geometric mean of the speedups over the batch sizes."""
    return math.exp(sum(math.log(cell["speedup"]) for cell in cells.values()) / len(cells))


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
            words.append(f"{factor:.1f}x{'' if state == before else f' {state}'} at batch {batch}")
        before = state
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


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
    return f"{ratio:.1f}x smaller" if ratio >= 1 else f"{1 / ratio:.1f}x larger"


def faster_with_loss(found, timed, best):
    """Return which file is faster than `best` for certain and was passed over for its accuracy, in words."""
    cells_of = {name: found["variants"][name]["benchmark"] for name in timed}
    name = max(timed, key=lambda name: mean_speedup(cells_of[name]))
    beaten = all(cell["speedup_low"] > cells_of[best][batch]["speedup_high"] for batch, cell in cells_of[name].items())
    if not beaten or not loses_accuracy(found["variants"][name]["evaluate"]):
        return ""
    return f"; `{name}` is {speeds(cells_of[name])} but {cost(found, name)}"


def smallest(found, sound, best):
    """Return which variant to take for size, where another than `best` is clearly smaller, in words."""
    sizes = {name: found["variants"][name]["verify"]["size_bytes"] for name in sound}
    name = min(sound, key=sizes.get)
    if sizes[name] > CLEARLY_SMALLER * sizes[best]:
        return ""
    return f"; the smallest, `{name}`, is {smaller(found, name)} and {cost(found, name)}"


def cost(found, name):
    """Return what the variant does to the accuracy, in words with its interval."""
    judged = found["variants"][name]["evaluate"]
    if not has_accuracy(judged):
        share, low, high = (100 * value for value in agreement(judged))
        return (
            f"agrees with fp32 on {share:.2f} % of {judged['images']:,} images (95 % interval {low:.2f} to {high:.2f}), "
            "whose labels are not known"
        )
    if "change_low" not in judged:
        return "its accuracy was not measured"
    if gains_accuracy(found, name):
        return f"even gains accuracy ({change(found, name)})"
    what = "accuracy" if loses_accuracy(judged) else "no detectable accuracy"
    return f"loses {what} on {judged['images']:,} images ({change(found, name)})"


def change(found, name):
    """Return the accuracy change in percentage points with its interval."""
    judged = found["variants"][name]["evaluate"]
    values = (100 * judged[key] for key in ("accuracy_change", "change_low", "change_high"))
    return "{:+.2f} points, 95 % interval {:+.2f} to {:+.2f}".format(*values)
