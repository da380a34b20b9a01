"""Why a variant is faster or slower than the baseline: differences of profiles, in words, the largest first.

A difference is a cause only if the rounds show it: the interval of its median over the paired rounds leaves out zero,
and it is at least LEAST_PERCENT of the longer of both calls, and more than what the trace can tell apart.
"""

import math
from collections import defaultdict

import numpy as np

from stages.common.profiling.operators import runs_in_integers
from stages.common.profiling.optimized_graph import GRAPH_INPUT, family_of

LEAST_PERCENT = 2.0
RESOLUTION_US = 0.5  # a node; the trace counts whole microseconds
CONFIDENCE = 0.97  # 11 rounds: between the second smallest and the second largest, so that a disturbed round is let off
FEW_CHANNELS = 4  # a dot product of 4 fills one lane of the int8 instructions
NOUNS = {"Conv": "convolution", "MatMul": "matrix product"}
CONVERSIONS = ("quantize", "dequantize", "layout")


class LayerTimes:
    """The times of one file at one batch size, by layer.

    `times`: {(layer, kind): (rounds,) microseconds}; `nodes`: {(layer, kind): [(Node, input type, microseconds)]}.
    `layer` is the original layer that the work, or the converted tensor, is of; "" where it is none's. `wall`:
    (rounds,) microseconds of a call without the profiler; `no_kernel`: what of it no node accounts for.
    """

    def __init__(self, profile, graph_nodes, layers):
        self.wall, self.calls, self.no_kernel = profile.wall, profile.calls, profile.wall - profile.sums
        self.graph_nodes, self.input_types = graph_nodes, profile.input_types
        self.times, self.nodes = {}, defaultdict(list)
        for node, times, input_type in zip(graph_nodes, profile.nodes.T, profile.input_types, strict=True):
            key = layers.get(node.origin, node.origin or ""), node.kind
            self.times[key] = self.times.get(key, 0) + times
            self.nodes[key].append((node, input_type, float(np.median(times))))

    def total(self, kind):
        """Return (rounds,) microseconds of all nodes of a kind."""
        return sum((times for key, times in self.times.items() if key[1] == kind), np.zeros(len(self.wall)))

    def op_types(self, key):
        """Return the operator types behind a key, the dearest first, each once."""
        ordered = sorted(self.nodes[key], key=lambda entry: -entry[2])
        return list(dict.fromkeys(node.op_type for node, _, _ in ordered))

    def how(self, key):
        """Return how a layer was run, for a sentence: "MaxPool on uint8 in NHWC", "ConvInteger, Mul, Add"."""
        node, input_type, _ = max(self.nodes[key], key=lambda entry: entry[2])
        layout = f" in {node.layout}" if node.layout else ""
        return f"{', '.join(self.op_types(key)[:3])} on {input_type or 'nothing'}{layout}"

    def rows(self, variant, batch):
        """Return the table's rows: variant, batch, layer, kind, op types, median microseconds, timed calls."""
        rows = [
            [variant, batch, layer, kind, " ".join(self.op_types((layer, kind))), np.median(times), self.calls]
            for (layer, kind), times in self.times.items()
        ]
        return [*rows, [variant, batch, "", "other", "(no kernel)", np.median(self.no_kernel), self.calls]]


def median_interval(values):
    """Return the narrowest interval between order statistics that holds the median with at least CONFIDENCE.

    With too few values for that it is their whole range.
    """
    ordered, count = np.sort(values), len(values)
    cut, outside = 0, 2 * 0.5**count
    while cut + 1 < count / 2:
        outside += 2 * math.comb(count, cut + 1) * 0.5**count
        if outside > 1 - CONFIDENCE:
            break
        cut += 1
    return float(ordered[cut]), float(ordered[count - 1 - cut])


def shown(difference, call_us, nodes):
    """Return whether the rounds show a difference (rounds,) from zero that matters to a call of `call_us`.

    `nodes`: how many nodes' times are in the difference.
    """
    low, high = median_interval(difference)
    least = max(LEAST_PERCENT / 100 * call_us, RESOLUTION_US * nodes)
    return (low > 0 or high < 0) and abs(np.median(difference)) >= least


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
        *_float_causes(variant, profiles, original, weighted),
        *_rest(own, baseline),
    ]
    found = [
        {
            "variant": variant,
            "batch": batch,
            "cause": words.replace("{}", _amount(difference)),
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


# The functions below yield candidates: kind, layer, sentence with a place for the amount, difference (rounds,), and
# how many nodes were measured for it.


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
        parts = [(layer, entry) for (layer, of), entries in own.nodes.items() if of == kind for entry in entries]
        difference = own.total(kind) - baseline.total(kind)
        if not parts:
            words = f"no {kind} nodes, which fp32 has: {{}}"
        else:
            layer, (_, _, most) = max(parts, key=lambda part: part[1][2])
            place = "of the input" if layer == GRAPH_INPUT else f"after {layer}" if layer else "elsewhere"
            before = sum(len(entries) for (_, of), entries in baseline.nodes.items() if of == kind)
            words = f"{len(parts)} {_joined({node.op_type for _, (node, _, _) in parts})}, {most:,.0f} us of it {place}"
            words += f", where fp32 has {before}: {{}}" if before else ": {}"
        yield kind, "", words, difference, len(parts)


def _float_causes(variant, profiles, original, weighted):
    """Yield the layers left in floating point, if another variant shows what they take in integers.

    A copy of fp32, in which nothing is quantized, has left none: it is as fast as fp32 because it is fp32.
    """
    own = profiles[variant]
    left = [layer for layer in weighted if not _integer(own, layer)]
    others = [
        name
        for name, other in profiles.items()
        if name not in (variant, "fp32") and left and all(_integer(other, layer) for layer in left)
    ]
    if variant == "fp32" or not others or not _quantized(own):
        return

    def time_of(times):
        return sum(times.times.get((layer, "layer"), 0) for layer in left)

    best = min(others, key=lambda name: np.median(time_of(profiles[name])))
    families = {family_of(original.nodes[layer].op_type) for layer in left}
    alike = [layer for layer in weighted if family_of(original.nodes[layer].op_type) in families]
    noun = f"{NOUNS[min(families)]}s".replace("xs", "ces") if len(families) == 1 else "layers with weights"
    words = f"{len(left)} of {len(alike)} {noun} in floating point{_why(own, left, weighted)}: {{}} than in integers in {best}"
    yield "float-layers", left[0] if len(left) == 1 else "", words, time_of(own) - time_of(profiles[best]), len(left)


def _quantized(times):
    """Return whether anything in a file runs in integers, or is at least converted to them."""
    return any(
        kind in ("quantize", "dequantize") or (kind == "layer" and _integer(times, layer))
        for layer, kind in times.nodes
    )


def _integer(times, layer):
    return any(runs_in_integers(node.op_type) for node, _, _ in times.nodes.get((layer, "layer"), []))


def _why(own, left, weighted):
    """Return the reason that the types of the inputs give, if they tell the two sorts of layer apart."""
    types = {True: set(), False: set()}
    for layer in weighted:
        for node, input_type, _ in own.nodes.get((layer, "layer"), []):
            if family_of(node.op_type):
                source = own.graph_nodes[node.source] if node.source is not None else None
                behind = source is not None and source.kind == "dequantize"
                types[layer in left].add(own.input_types[node.source] if behind else input_type)
    if types[True] and types[False] and not types[True] & types[False]:
        return f" (their inputs are {_joined(types[True])}, those of the integer ones {_joined(types[False])})"
    return ""


def _rest(own, baseline):
    yield "other", "", "nodes that belong to no layer: {}", own.total("other") - baseline.total("other"), 0
    nodes = max(len(own.graph_nodes), len(baseline.graph_nodes))
    yield "other", "", "outside of all nodes: {}", own.no_kernel - baseline.no_kernel, nodes


def describe(layer, original):
    """Return a layer for a sentence: "first convolution conv_1 with 1 input channel", "depthwise convolution conv_2"."""
    node = original.nodes[layer]
    family = family_of(node.op_type)
    words = f"{NOUNS.get(family, node.op_type)} {layer}"
    if family == "Conv":
        first = next(name for name, other in original.nodes.items() if family_of(other.op_type) == "Conv")
        outputs, channels = original.weights.get(node.input[1], (0, 0))[:2]
        groups = next((attribute.i for attribute in node.attribute if attribute.name == "group"), 1)
        if groups > 1:  # its weights' second dimension counts the channels of a group
            words = f"{'depthwise' if groups == outputs else 'grouped'} {words}"
        words = f"first {words}" if layer == first else words
        if groups == 1 and 0 < channels < FEW_CHANNELS:
            words += f" with {channels} input channel{'s' * (channels > 1)}"
    return words


def _amount(difference):
    median = float(np.median(difference))
    return f"{abs(median):,.{0 if abs(median) >= 10 else 1}f} us {'slower' if median > 0 else 'faster'}"


def _joined(words):
    return " and ".join(sorted(words))
