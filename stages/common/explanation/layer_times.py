"""The time of a call by layer of the original model, of one file at one batch size."""

from collections import defaultdict

import numpy as np

CONVERSIONS = ("quantize", "dequantize", "layout")  # kinds of nodes beside the layers' own


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

    def entries(self, kind):
        """Return [(layer, (Node, input type, microseconds))] of all nodes of a kind."""
        return [(layer, entry) for (layer, of), entries in self.nodes.items() if of == kind for entry in entries]

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
