"""The layers that a variant leaves in floating point, and what they take in integers where another variant runs them so."""

import numpy as np

from stages.common.explanation.wording import NOUNS, joined
from stages.common.profiling.operators import runs_in_integers
from stages.common.profiling.optimized_graph import family_of


def left_in_float(variant, profiles, original, weighted):
    """Yield a candidate of find_causes: the layers left in floating point, if another variant shows them in integers.

    Arguments are those of find_causes. Nothing is yielded where there is nothing to tell; a candidate is (kind, layer or
    "", sentence with {} for the amount, difference (rounds,) in microseconds, how many nodes were measured for it).
    A copy of fp32, in which nothing is quantized, has left none: it is as fast as fp32 because it is fp32.
    """
    own = profiles[variant]
    left = [layer for layer in weighted if (layer, "layer") in own.times and not _integer(own, layer)]
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
    nodes = max(sum(len(one.nodes.get((layer, "layer"), [])) for layer in left) for one in (own, profiles[best]))
    yield "float-layers", left[0] if len(left) == 1 else "", words, time_of(own) - time_of(profiles[best]), nodes


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
        return f" (their inputs are {joined(types[True])}, those of the integer ones {joined(types[False])})"
    return ""
