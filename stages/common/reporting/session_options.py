"""What session options would bring beside the tuned file, in the words and rows of the report."""

from stages.common.reporting.tables import Cell
from stages.common.statistics.multiple import SIGNIFICANCE

FP32, TUNED = "fp32", "tuned"


def options_section(model, metrics):
    """Return {sentence, rows} on the session options that `tune` raced; None where its metrics say nothing of them."""
    options = metrics.get("session_options")
    if options is None:
        return None
    if not options["rounds"]:
        return {
            "sentence": "Session options were not raced: what the search left of its seconds was too little for them.",
            "rows": [],
        }
    named = {f"{one['setting']}={one['value']}": one for one in options.values() if isinstance(one, dict)}
    if metrics["chosen"] == FP32:  # there is no other file
        results = {name: {FP32: one[FP32]} for name, one in named.items()}
    else:
        results = {name: {TUNED: one, FP32: one[FP32]} for name, one in named.items()}
    rows = [_row(name, files, options["images"], f"metrics/tune/{model}.json") for name, files in results.items()]
    return {"sentence": _sentence(results, options["rounds"], metrics["batch"]), "rows": rows}


def helps(result):
    """Return whether an option makes a file faster than the default session, for certain among all that were raced."""
    return result.get("holm_p", 1) < SIGNIFICANCE and result["speedup"] > 1


def _row(name, files, images, source):
    speeds = {label: Cell(_speed(result), source, strong=helps(result)) for label, result in files.items()}
    changed = next(iter(files.values())).get("changed")
    return {
        "session option": Cell(name),
        **speeds,
        f"changed, of {images:,}": Cell("" if changed is None else f"{changed:,}", source),
    }


def _speed(result):
    if "speedup" in result:
        return "{speedup:.2f}x ({speedup_low:.2f}-{speedup_high:.2f})".format(**result)
    if "loads" in result:
        return "does not run"
    return "the same graph" if result.get("same_graph") else "no time"


def _sentence(results, rounds, batch):
    gains = [
        "`{}` makes `{}` {speedup:.2f}x as fast ({speedup_low:.2f} to {speedup_high:.2f})".format(name, label, **result)
        for name, files in results.items()
        for label, result in files.items()
        if helps(result)
    ]
    found = " and ".join([*filter(None, [", ".join(gains[:-1])]), *gains[-1:]])
    return (
        f"No file here needs a session option. Apart from the recipe, `tune` tried {len(results)} of them, each alone against "
        f"the default session ({rounds} rounds at batch {batch}, Holm's correction): {found or 'none makes a file faster for certain'}."
    )
