"""How layers and differences in time are called in the sentences of causes."""

import numpy as np

from stages.common.profiling.optimized_graph import family_of

NOUNS = {"Conv": "convolution", "MatMul": "matrix product"}
FEW_CHANNELS = 4  # a dot product of 4 fills one lane of the int8 instructions


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


def amount(difference):
    """Return the median of a difference (rounds,) in microseconds for a sentence: "356 us slower"."""
    median = float(np.median(difference))
    return f"{abs(median):,.{0 if abs(median) >= 10 else 1}f} us {'slower' if median > 0 else 'faster'}"


def joined(words):
    """Return words in the order of the alphabet, with "and" between them."""
    return " and ".join(sorted(words))
