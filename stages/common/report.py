"""The report as Markdown: the tables of this machine, with the sample and the interval beside every number."""

import pandas as pd

from stages.common.results import BASELINE, verdict


def machine_sentence(machine):
    """Return the machine in one sentence."""
    cpu, packages = machine["cpu"], machine["packages"]
    return (
        f"{cpu['model']} ({cpu['isa']}), {cpu['usable_cores']} usable cores, {machine['os']}, "
        f"onnxruntime {packages['onnxruntime']}"
    )


def summary_table(found, variants):
    """Return size, accuracy and latency of every variant as a Markdown table: the table of the README."""
    rows = []
    batches = list(found["control"])
    for name in [BASELINE, *variants]:
        result = found["variants"][name]
        rows.append({
            "variant": f"`{name}`",
            "size": f"{result['verify']['size_bytes'] / 1024:,.0f} KiB",
            "accuracy": _accuracy(result["evaluate"]),
            "changed": _count(result["evaluate"], "changed"),
            **{f"batch {batch}": _latency(name, result["benchmark"].get(batch)) for batch in batches},
        })  # fmt: skip
    return _markdown(rows)


def _accuracy(judged):
    if "accuracy" not in judged:
        return "does not run here"
    if "accuracy_change" not in judged:
        return f"{judged['accuracy']:.2%}"
    points = (100 * judged[key] for key in ("accuracy_change", "change_low", "change_high"))
    return "{:.2%} ({:+.2f}, {:+.2f} to {:+.2f})".format(judged["accuracy"], *points)


def _count(metrics, key):
    return f"{metrics[key]:,}" if key in metrics else ""


def _latency(name, cell):
    if cell is None:
        return ""
    if name == BASELINE:
        return f"{cell['median_ms']:.3g} ms"
    speed = f"{cell['speedup']:.2f}x ({cell['speedup_low']:.2f}-{cell['speedup_high']:.2f})"
    return f"**{speed}**" if verdict(cell) == "faster" else speed


def prediction_table(found, variants):
    """Return the paired comparison with fp32: what changed, in which direction, and whether chance explains it."""
    rows = []
    for name in variants:
        judged = found["variants"][name]["evaluate"]
        if "accuracy" not in judged:
            continue
        rows.append({
            "variant": f"`{name}`",
            "argmax agreement": f"{judged['argmax_agreement']:.2%}",
            "changed": judged["changed"],
            "lost": judged["lost"],
            "gained": judged["gained"],
            "neutral": judged["neutral"],
            "McNemar p": f"{judged['mcnemar_p']:.2g}",
            "largest logit difference": f"{judged['max_abs_logit_difference']:.2f}",
            "images": f"{judged['images']:,}",
        })  # fmt: skip
    return _markdown(rows)


def latency_table(spread, found):
    """Return the calls themselves: median, 5 % and 95 % quantiles and the slowest, in milliseconds, nothing dropped."""
    rows = []
    for row in spread.sort_values(["batch", "median_ms"]).itertuples():
        cell = found["variants"].get(row.variant, {"benchmark": found["control"]})["benchmark"].get(row.batch, {})
        rows.append({
            "batch": row.batch,
            "file": f"`{row.variant}`",
            "median ms": f"{row.median_ms:.3g}",
            "5 %": f"{row.p5_ms:.3g}",
            "95 %": f"{row.p95_ms:.3g}",
            "slowest": f"{row.worst_ms:.3g}",
            "calls": row.calls,
            "speed against fp32": f"{cell['speedup']:.3f} ({cell['speedup_low']:.3f}-{cell['speedup_high']:.3f})"
            if "speedup" in cell
            else "",
        })  # fmt: skip
    return _markdown(rows)


def loading_table(found, variants):
    """Return where every file loads and runs: a column a runtime, the status and operator where it does not."""
    rows = []
    for name in [BASELINE, *variants]:
        verified = found["variants"][name]["verify"]
        others = {key: result for key, result in verified.items() if isinstance(result, dict)}
        columns = {"here": verified, **others}
        rows.append(
            {
                "file": f"`{name}`",
                **{key.replace("_", " ", 1).replace("_", "."): _loads(result) for key, result in columns.items()},
            }
        )
    return _markdown(rows)


def _loads(result):
    return "runs" if result["finite"] else result["error"]


def warnings(found):
    """Return what a reader has to know about the conditions of the benchmark, as sentences."""
    conditions = found["conditions"]
    lines = []
    if conditions["load_per_core_before"] > 0.5:
        lines.append(
            f"The load average was {conditions['load_per_core_before']:.2f} a core before the benchmark started."
        )
    if conditions["cpu_steal_percent"] > 2:
        lines.append(f"{conditions['cpu_steal_percent']:.1f} % of the CPU time went to other guests of the host.")
    for batch, cell in found["control"].items():
        if verdict(cell) != "undecided":
            lines.append(
                f"At batch {batch} fp32 seems {verdict(cell)} than itself ({cell['speedup_low']:.3f}-{cell['speedup_high']:.3f}): "
                "read differences of that size as noise (one interval in twenty does this)."
            )
    return lines


def report(results, variants, machine, spreads, messages):
    """Return the whole report.

    `results`: see `load_results`; `spreads`: {model: table of `call_spread`}; `messages`: {model: [what verify-load
    said of a file that failed somewhere]}.
    """
    parts = [
        "# What int8 does to these networks on this machine",
        f"Machine: {machine_sentence(machine)}.",
        "Accuracy change in percentage points with Newcombe's 95 % interval for paired proportions; speed = fp32 time / "
        "variant time with the 95 % t-interval over rounds (bold: faster for certain). Nothing here holds for another machine.",
    ]
    for model, found in results.items():
        conditions = found["conditions"]
        parts += [
            f"## {model}",
            summary_table(found, variants),
            f"{conditions['rounds']} interleaved rounds with new sessions, {conditions['threads']} thread(s), real test images.",
            *(f"> {line}" for line in warnings(found)),
            "### Which predictions changed",
            prediction_table(found, variants),
            "Lost: fp32 right, variant wrong; gained: the reverse; neutral: both wrong, different labels. The p-value is "
            "McNemar's exact one: how often would chance alone give a net change this large?",
            "### Every call",
            latency_table(spreads[model], found),
            "`fp32-again` is a second copy of the baseline: the control.",
            "### Where the files load",
            loading_table(found, variants),
            *(f"- {message}" for message in messages[model]),
        ]
    figures = ["latency", "accuracy", "changes"]
    parts += ["## Figures", *(f"![{name}]({name}.png)" for name in figures)]
    return "\n\n".join(parts) + "\n"


def _markdown(rows):
    return pd.DataFrame(rows).fillna("").astype(str).to_markdown(index=False, disable_numparse=True)
