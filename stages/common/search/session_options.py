"""What a session option would bring: each alone against the default session, in rounds of their own, reported apart.

The search looks for a file that is fast in a default session, and nothing here changes what it takes. fp32 is raced with
the same options where there is time, because an option that helps it as much says nothing about the recipe.
"""

import time

from stages.common.search.option_predictions import affordable_images, compare_predictions
from stages.common.search.option_race import OptionRace
from stages.common.search.options_to_try import OPTIONS
from stages.common.statistics.multiple import SIGNIFICANCE

AGREEMENT_SHARE = 0.2  # of the time: for predictions
FP32, TUNED = "fp32", "tuned"


def measure_options(files, values, validation, *, threads, seconds, seed, folder, output=None, options=None):
    """Return the metrics `session_options` of {"fp32": path, "tuned": path}; the second may be missing.

    {rounds, images, <option>: {setting, value, speedup, speedup_low, speedup_high, holm_p, changed,
    max_abs_logit_difference, fp32: {speedup...}}}, `speedup` = the default's time / the option's. Where an option leaves
    the graph as it is, `same_graph` is all that there is; `loads` is 0 where the file does not run with the option.
    p-values are corrected together. Where `seconds` are not enough for both files, `fp32` has no speedup; where they are
    not enough for tuned either, `rounds` is 0 and nothing else is there, and where none are left no session is opened;
    more than they need they do not take. `values`: the timed input; `validation`: (path, count, scaling) of the images
    whose predictions are compared: tuned's, else fp32's.
    """
    if seconds <= 0:
        return {"rounds": 0}
    options = {name: one for name, one in (options or OPTIONS).items() if one.least_threads <= threads}
    start, race = time.monotonic(), OptionRace(files, options, threads=threads, folder=folder)
    race.look(values)
    left = seconds - (time.monotonic() - start)
    racing = min((1 - AGREEMENT_SHARE) * left, race.enough_seconds())
    rounds = race.affordable_rounds(racing)
    if not rounds and TUNED in files:
        race.leave_out(FP32)
        rounds = race.affordable_rounds(racing)
    if not rounds:
        return {"rounds": 0}
    speeds = race.speeds(values, rounds=rounds, seconds=racing, seed=seed)
    last, (_, count, _) = list(files)[-1], validation
    predicting = AGREEMENT_SHARE / (1 - AGREEMENT_SHARE) * racing
    images = affordable_images(count, predicting, race.call_seconds(last) / len(values))
    judged = compare_predictions(race.opened(last), validation, images, threads=threads, output=output, where=last)
    metrics = {"rounds": rounds, "images": images}
    for name, option in options.items():
        found = {file: {**race.idle.get((file, name), {}), **speeds.get((file, name), {})} for file in files}
        found[last] |= judged.get(name, {})
        metrics[name] = {"setting": option.setting, "value": option.value, **found.get(TUNED, {}), FP32: found[FP32]}
    return metrics


def sentence(metrics):
    """Return in a line what can be told from the default session."""
    if not metrics["rounds"]:
        return "session options: left out, what the search leaves of its seconds is too little for them"
    found = {name: value for name, value in metrics.items() if isinstance(value, dict)}
    told = [
        f"{one['setting']}={one['value']} {file['speedup']:.2f}x ({file['speedup_low']:.2f}-{file['speedup_high']:.2f}) of {label}"
        for one in found.values()
        for label, file in ((TUNED, one), (FP32, one[FP32]))
        if file.get("holm_p", 1) < SIGNIFICANCE and file["speedup"] > 1
    ]
    what = ", ".join(told) if told else "none is faster than the default session for certain"
    return f"session options, {metrics['rounds']} rounds of {len(found)}: {what}"
