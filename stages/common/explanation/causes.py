"""Why a variant is faster or slower than the baseline: differences of profiles, in words, the largest first.

A difference is a cause only if the rounds show it (see shown_by_rounds): the interval of its median over the paired
rounds leaves out zero, and it is at least LEAST_PERCENT of the longer of both calls, and more than what the trace can
tell apart.
"""

import numpy as np

from stages.common.explanation.layer_times import CONVERSIONS
from stages.common.explanation.left_in_float import left_in_float
from stages.common.explanation.shown_by_rounds import shown
from stages.common.explanation.wording import amount, describe, joined
from stages.common.profiling.optimized_graph import GRAPH_INPUT


def find_causes(variant, batch, profiles, original, weighted):
    """Return what explains a variant's time at a batch size, as dictionaries, the largest first.

    `profiles`: {variant: LayerTimes} at that batch size, with "fp32"; `weighted`: the layers with weights. Keys of a
    cause: variant, batch, cause (a sentence), kind, layer, microseconds (positive: it makes the variant slower). All
    but those of kind "float-layers" are differences to fp32 that do not overlap; that kind is the difference to the
    fastest variant that runs the same layers in integers, and overlaps the others: it is not to be added to them.
    """
    own, baseline = profiles[variant], profiles["fp32"]
    call_us = max(np.median(own.wall), np.median(baseline.wall))
    found = [
        *_layer_causes(own, baseline, original),
        *_conversion_causes(own, baseline),
        *left_in_float(variant, profiles, original, weighted),
        *_rest(own, baseline),
    ]
    found = [
        {
            "variant": variant,
            "batch": batch,
            "cause": words.replace("{}", amount(difference)),
            "kind": kind,
            "layer": layer,
            "microseconds": round(float(np.median(difference)), 3),
        }
        for kind, layer, words, difference, nodes in found
        if shown(difference, call_us, nodes)
    ]
    return ranked(found)


def ranked(causes):
    """Return causes with the largest first; layers that are rightly left in floating point are none, and come last."""

    def place(cause):
        return cause["kind"] == "float-layers" and cause["microseconds"] < 0, -abs(cause["microseconds"])

    return sorted(causes, key=place)


# The functions below, and left_in_float, yield candidates: kind, layer, sentence with a place for the amount, difference
# (rounds,), and how many nodes were measured for it.


def _layer_causes(own, baseline, original):
    for key in dict.fromkeys(key for key in [*baseline.times, *own.times] if key[1] == "layer"):
        nothing = np.zeros(len(own.wall))
        difference = own.times.get(key, nothing) - baseline.times.get(key, nothing)
        words = f"{describe(key[0], original)}: {{}} {_as_what(key, own, baseline)}"
        yield "layer", key[0], words, difference, max(len(own.nodes.get(key, [])), len(baseline.nodes.get(key, [])))


def _as_what(key, own, baseline):
    if key not in own.times:
        return f"because it is gone (fp32: {baseline.how(key)})"
    if key not in baseline.times:
        return f"as {own.how(key)}, which fp32 does not run"
    return f"as {own.how(key)} than as {baseline.how(key)}"


def _conversion_causes(own, baseline):
    for kind in CONVERSIONS:
        parts, before = own.entries(kind), len(baseline.entries(kind))
        difference = own.total(kind) - baseline.total(kind)
        if not parts:
            words = f"no {kind} nodes, which fp32 has: {{}}"
        else:
            layer, (_, _, most) = max(parts, key=lambda part: part[1][2])
            place = "of the input" if layer == GRAPH_INPUT else f"after {layer}" if layer else "elsewhere"
            words = f"{len(parts)} {joined({node.op_type for _, (node, _, _) in parts})}, {most:,.0f} us of it {place}"
            words += f", where fp32 has {before}: {{}}" if before else ": {}"
        yield kind, "", words, difference, max(len(parts), before)


def _rest(own, baseline):
    nodes = max(len(own.entries("other")), len(baseline.entries("other")))
    yield "other", "", "nodes that belong to no layer: {}", own.total("other") - baseline.total("other"), nodes
    if min(np.median(own.no_kernel), np.median(baseline.no_kernel)) >= 0:  # else a profile holds more than its call
        nodes = max(len(own.graph_nodes), len(baseline.graph_nodes))
        yield "other", "", "outside of all nodes: {}", own.no_kernel - baseline.no_kernel, nodes
