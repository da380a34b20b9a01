"""One sentence a network: which file to use on this machine, and what it gains and costs. It follows from the metrics."""

from stages.common.reporting.accuracy_cost import change, cost, has_accuracy, loses_accuracy
from stages.common.reporting.best_variant import CLEARLY_SMALLER, best_variant, mean_speedup
from stages.common.reporting.results import BASELINE, verdict
from stages.common.reporting.wording import listed, smaller, speeds


def sentence(model, found, variants):
    """Return the verdict on a network as one sentence that names the best variant, or says why there is none.

    It is the best (see best_variant) of those that run here without a detectable loss of accuracy (see loses_accuracy).
    """
    runs = [name for name in variants if found["variants"][name]["benchmark"]]
    timed = [name for name in runs if not is_fp32(found, name)]
    if not timed:
        why = "is better than fp32, of which `tuned` is a copy" if runs else "runs on this onnxruntime"
        return f"No int8 file of {model} {why}: keep fp32."
    sound = [name for name in timed if not loses_accuracy(found["variants"][name]["evaluate"])]
    return use_the_best(model, found, timed, sound) if sound else keep_fp32(model, found, timed)


def is_fp32(found, name):
    """Return whether a variant is a copy of fp32, as `tuned` is where nothing is faster: same size, same logits."""
    sizes = {found["variants"][variant]["verify"]["size_bytes"] for variant in (BASELINE, name)}
    return len(sizes) == 1 and found["variants"][name]["evaluate"].get("max_abs_logit_difference") == 0


def keep_fp32(model, found, timed):
    """Return the verdict where every variant loses accuracy: which loses the least."""
    judged = {name: found["variants"][name]["evaluate"] for name in timed}
    if not has_accuracy(judged[timed[0]]):
        most = max(timed, key=lambda name: judged[name]["argmax_agreement"])
        return f"Every int8 file of {model} decides otherwise than fp32 too often, `{most}` the least: it {cost(found, most)}; keep fp32, or measure with labels."
    least = max(timed, key=lambda name: judged[name]["accuracy_change"])
    return f"Every int8 file of {model} loses accuracy, `{least}` the least with {change(found, least)}: keep fp32, or accept that loss."


def use_the_best(model, found, timed, sound):
    """Return the verdict where some variants are `sound`: where the best of them is faster than fp32, and what it costs."""
    best, is_fastest, others = best_variant(found, sound)
    cells_of = {name: found["variants"][name]["benchmark"] for name in sound}
    cells = cells_of[best]
    verdicts = {batch: verdict(cell) for batch, cell in cells.items()}
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


# Each of the functions below returns a clause of the sentence, "" where there is nothing to tell.


def as_fast(found, best, others):
    """Return which other variants are as fast as the best, or its very file, in words."""
    file_of = {name: found["variants"][name].get("same_file_as", name) for name in (best, *others)}
    copies = [f"`{name}`" for name in others if file_of[name] == file_of[best]]
    tied = [f"`{name}`" for name in others if file_of[name] != file_of[best]]
    words = f"; {listed(copies)} {'is' if len(copies) == 1 else 'are'} the same file" if copies else ""
    return words + (f"; {listed(tied)} cannot be told from it in speed" if tied else "")


def faster_at(cells_of, batches):
    """Return which variants are faster than fp32 for certain at any of `batches`, the fastest at each, in words.

    Of a variant all batch sizes are told: it may be slower at others. Returns "" where there is none.
    """
    best = []
    for batch in batches:
        certain = [name for name in cells_of if batch in cells_of[name] and verdict(cells_of[name][batch]) == "faster"]
        best += [max(certain, key=lambda name: cells_of[name][batch]["speedup"])] if certain else []
    return "; ".join(f"`{name}` is {speeds(cells_of[name])}" for name in dict.fromkeys(best))


def faster_with_loss(found, timed, best):
    """Return which file is faster than `best` for certain and was passed over for its accuracy, in words."""
    cells_of = {name: found["variants"][name]["benchmark"] for name in timed}
    name = max(timed, key=lambda name: mean_speedup(cells_of[name]))
    beaten = all(
        batch in cells_of[best] and cell["speedup_low"] > cells_of[best][batch]["speedup_high"]
        for batch, cell in cells_of[name].items()
    )
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
