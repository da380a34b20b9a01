"""What a variant does to the accuracy, judged against chance and told in words; agreement with fp32 without labels."""

from stages.common.reporting.results import agreement
from stages.common.statistics.multiple import SIGNIFICANCE, holm

# MLPerf Inference asks a quantized model for 99 % of fp32's accuracy; where there are no labels, of its decisions.
LEAST_AGREEMENT = 0.99


def has_accuracy(judged):
    """Return whether a variant's accuracy could be measured: not without labels."""
    return "changed" not in judged or "accuracy_change" in judged


def loses_accuracy(judged):
    """Return whether a variant has a detectable loss: the whole 95 % interval of the accuracy change is below zero.

    Without labels: the whole interval of the agreement with fp32 is below LEAST_AGREEMENT, since a change of accuracy is
    never larger than the share of changed predictions.
    """
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
