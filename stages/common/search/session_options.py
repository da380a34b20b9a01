"""What a session option would bring: each alone against the default session, in rounds of their own, reported apart.

The search looks for a file that is fast in a default session, and nothing here changes what it takes. fp32 is raced with
the same options where there is time, because an option that helps it as much says nothing about the recipe.
"""

import hashlib
import time
from collections import Counter
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx

from stages.common import timing
from stages.common.images import input_batches, load_images
from stages.common.session.model_io import as_logits, judged_output, output_names, run
from stages.common.session.runtime import default_options, open_with
from stages.common.statistics.intervals import ratio_interval
from stages.common.statistics.multiple import SIGNIFICANCE, holm, ratio_p
from stages.common.statistics.paired import compare

FEWEST_ROUNDS, MOST_ROUNDS = 5, 20
WARMUP_CALLS, CALLS = 2, 4  # CALLS: of a session in a round at least, to see how many rounds there is time for
VISIT_SECONDS = 0.03  # of calls in a round that are enough, where calls are short
AGREEMENT_SHARE = 0.2  # of the time: for predictions
FEWEST_IMAGES, MOST_IMAGES, AT_ONCE = 8, 1000, 32  # whose predictions are compared; the last is memory only
DEFAULT, FP32, TUNED = "default", "fp32", "tuned"


@dataclass(frozen=True)
class Option:
    """A setting of SessionOptions or a config entry (whose names have dots), in onnxruntime's words.

    `graph`: it acts through the optimized graph alone, so that where the graph stays the same there is nothing to time.
    """

    setting: str
    value: str
    graph: bool = False
    least_threads: int = 1


OPTIONS = {
    # where tensors lie, and when memory is asked for: what two sessions of one file differ by, too
    "cpu_mem_arena_off": Option("enable_cpu_mem_arena", "0"),
    "mem_pattern_off": Option("enable_mem_pattern", "0"),
    # weights as they are in the file: kernels pack them in every call, which pays where a call uses them little
    "prepacking_off": Option("session.disable_prepacking", "1"),
    # the layouts NCHWc and NHWC cost conversions at their borders, all of them and around integer kernels alone
    "layouts_off": Option("graph_optimization_level", "ORT_ENABLE_EXTENDED", graph=True),
    "nhwc_off": Option("disabled_optimizers", "NhwcTransformer", graph=True),
    # moves a QuantizeLinear above a pool, which then runs in 8 bits and in NCHW
    "qdq_propagation_off": Option("disabled_optimizers", "QDQPropagationTransformer", graph=True),
    # drops the pairs that no kernel took; their rounding goes with them
    "qdq_cleanup_on": Option("session.enable_quant_qdq_cleanup", "1", graph=True),
    # what exact sums cost without VNNI: unsigned weights, whose products do not saturate in 16 bits
    "x64_precision_on": Option("session.x64quantprecision", "1", graph=True),
    # waiting threads sleep; with one thread nobody waits
    "intra_op_spinning_off": Option("session.intra_op.allow_spinning", "0", least_threads=2),
}
# Not here: session.set_denormal_as_zero, which the first session of a process decides for all of them, so that it cannot
# be raced within one; session.disable_quant_qdq, which gives up integers; more threads and affinities, which are the
# machine's to give; entries for other providers and for kernels that a CNN does not have.


def open_with_option(option, path, *, threads, **instruments):
    """Return a session that differs from open_session's by one Option; None is the default."""
    options, keywords = default_options(threads=threads), {}
    if option is None:
        pass
    elif "." in option.setting:
        options.add_session_config_entry(option.setting, option.value)
    elif option.setting == "graph_optimization_level":
        options.graph_optimization_level = getattr(type(options.graph_optimization_level), option.value)
    elif option.setting == "disabled_optimizers":
        keywords["disabled_optimizers"] = [option.value]
    else:
        setattr(options, option.setting, bool(int(option.value)))
    for name, value in instruments.items():
        setattr(options, name, value)
    return open_with(options, path, **keywords)


def measure_options(files, values, validation, *, threads, seconds, seed, folder, output=None, options=None):
    """Return the metrics `session_options` of {"fp32": path, "tuned": path}; the second may be missing.

    {rounds, images, <option>: {setting, value, speedup, speedup_low, speedup_high, holm_p, changed,
    max_abs_logit_difference, fp32: {speedup...}}}, `speedup` = the default's time / the option's. Where an option leaves
    the graph as it is, `same_graph` is all that there is; `loads` is 0 where the file does not run with the option. p-values
    are corrected together. Where `seconds` are not enough for both files, `fp32` has no speedup; where they are not enough
    for tuned either, `rounds` is 0 and nothing else is there; more than they need they do not take. `values`: the timed input; `validation`: (path, count,
    scaling) of the images whose predictions are compared: tuned's, else fp32's.
    """
    options = {name: one for name, one in (options or OPTIONS).items() if one.least_threads <= threads}
    start, race = time.monotonic(), _Race(files, options, threads=threads, folder=folder)
    race.look(values)
    seconds = min(seconds - (time.monotonic() - start), race.enough_seconds())
    rounds = race.affordable_rounds((1 - AGREEMENT_SHARE) * seconds)
    if not rounds and TUNED in files:
        race.leave_out(FP32)
        rounds = race.affordable_rounds((1 - AGREEMENT_SHARE) * seconds)
    if not rounds:
        return {"rounds": 0}
    speeds = race.speeds(values, rounds=rounds, seconds=(1 - AGREEMENT_SHARE) * seconds, seed=seed)
    judged, images = race.agreement(validation, seconds=AGREEMENT_SHARE * seconds, batch=len(values), output=output)
    metrics = {"rounds": rounds, "images": images}
    for name, option in options.items():
        found = {
            file: {**race.idle.get((file, name), {}), **speeds.get((file, name), {}), **judged.get((file, name), {})}
            for file in files
        }
        metrics[name] = {"setting": option.setting, "value": option.value, **found.get(TUNED, {}), FP32: found[FP32]}
    return metrics


class _Race:
    """The visits of a race: (file, option's name) with DEFAULT among the names."""

    def __init__(self, files, options, *, threads, folder):
        self.files, self.options, self.threads, self.folder = files, options, threads, folder
        self.visits, self.seconds = {}, {}  # {visit: what opens a session}, {visit: (of opening, of a call)}
        self.idle = {}  # {visit that is not raced: why, as its metrics}

    def look(self, values):
        """Open every session once: which options change the graph, and what does a round cost?"""
        for file, path in self.files.items():
            default = self.signature(partial(open_with_option, None, path))
            for name, option in {DEFAULT: None, **self.options}.items():
                opened = partial(open_with_option, option, path)
                try:
                    if option and option.graph and self.signature(opened) == default:
                        self.idle[file, name] = {"same_graph": 1}
                        continue
                    self.seconds[file, name] = _cost(opened, values, self.threads)
                except Exception:  # onnxruntime has a class for every status; that it does not run is the result
                    if option is None:
                        raise
                    self.idle[file, name] = {"loads": 0}
                    continue
                self.visits[file, name] = opened

    def leave_out(self, file):
        """Race a file no more."""
        self.visits = {visit: opened for visit, opened in self.visits.items() if visit[0] != file}
        self.seconds = {visit: seconds for visit, seconds in self.seconds.items() if visit[0] != file}

    def signature(self, opened):
        """Return the graph_signature of what a session runs."""
        saved = self.folder / "option.tmp"
        opened(threads=self.threads, optimized_model_filepath=str(saved))
        return graph_signature(onnx.load(saved))

    def enough_seconds(self):
        """Return the seconds of MOST_ROUNDS rounds with many calls each, and one to plan the calls."""
        visits = self.seconds.values()
        one = sum(opening + WARMUP_CALLS * call + max(CALLS * call, VISIT_SECONDS) for opening, call in visits)
        return (MOST_ROUNDS + 1) * one / (1 - AGREEMENT_SHARE)

    def affordable_rounds(self, seconds):
        """Return how many rounds there is time for, after one to plan the calls; 0 if they are too few."""
        one = sum(opening + (WARMUP_CALLS + CALLS) * call for opening, call in self.seconds.values())
        rounds = int(seconds / one) - 1
        return min(rounds, MOST_ROUNDS) if rounds >= FEWEST_ROUNDS else 0

    def speeds(self, values, *, rounds, seconds, seed):
        """Return {visit: {speedup, speedup_low, speedup_high, holm_p}} of every visit with an option."""
        opening = (rounds + 1) * sum(opening for opening, _ in self.seconds.values())
        rows = timing.measure(
            {f"{file} {name}": opened for (file, name), opened in self.visits.items()}, {len(values): values},
            rounds=rounds, seconds=max(0.0, seconds - opening), threads=self.threads, warmup_calls=WARMUP_CALLS,
            seed=seed, show_progress=False, open_file=lambda opened, threads: opened(threads=threads),
        )  # fmt: skip
        medians = {label: times for (label, _), times in timing.round_medians(rows).items()}
        ratios = {
            (file, name): medians[f"{file} {DEFAULT}"] / medians[f"{file} {name}"]
            for file, name in self.visits
            if name != DEFAULT
        }
        adjusted = holm([ratio_p(found) for found in ratios.values()])
        keys = ("speedup", "speedup_low", "speedup_high")
        return {
            visit: dict(zip(keys, ratio_interval(found), strict=True)) | {"holm_p": p}
            for (visit, found), p in zip(ratios.items(), adjusted, strict=True)
        }

    def agreement(self, validation, *, seconds, batch, output):
        """Return ({visit: {changed, max_abs_logit_difference} against the default session} of the last file, images)."""
        file, (path, count, scaling) = list(self.files)[-1], validation
        visits = {name: opened for (owner, name), opened in self.visits.items() if owner == file}
        an_image = sum(call for (owner, _), (_, call) in self.seconds.items() if owner == file) / batch
        limit = int(min(count, max(FEWEST_IMAGES, min(MOST_IMAGES, seconds / an_image))))
        stored, streamed = load_images(path), {"batch_size": AT_ONCE, "path": path, "limit": limit, **scaling}
        logits = {
            name: _predict(opened(threads=self.threads), input_batches(stored, **streamed), output, file)
            for name, opened in visits.items()
        }
        judged = {
            (file, name): compare(found, logits[DEFAULT], None) for name, found in logits.items() if name != DEFAULT
        }
        keys = ("changed", "max_abs_logit_difference")
        return {visit: {key: found[key] for key in keys} for visit, found in judged.items()}, limit


def _cost(opened, values, threads):
    """Return (seconds of opening a session, seconds of a call)."""
    start = time.perf_counter()
    session = opened(threads=threads)
    opening = time.perf_counter() - start
    timing.time_calls(session, values, 1)
    return opening, min(timing.time_calls(session, values, 2)) / 1e9


def _predict(session, batches, output, where):
    judged = judged_output(output_names(session), output, where)
    return np.concatenate([as_logits(found) for batch in batches for [found] in run(session, batch, [judged])])


def graph_signature(model):
    """Return what an optimized ModelProto computes, whatever its nodes and tensors are called.

    Each tensor is known by the type of its elements, as far as the file says it, and by its producer: operator, attributes
    and, in turn, inputs. Of weights it is shape and type, of what the model is fed the place. Nodes are in
    topological order, as onnxruntime writes them.
    """
    graph = model.graph
    types = {value.name: value.type.tensor_type.elem_type for value in [*graph.input, *graph.value_info, *graph.output]}
    known = {"": "", **{value.name: f"input {place} {types[value.name]}" for place, value in enumerate(graph.input)}}
    known |= {tensor.name: f"weights {tuple(tensor.dims)} {tensor.data_type}" for tensor in graph.initializer}
    nodes = Counter()
    for node in graph.node:
        attributes = sorted(attribute.SerializeToString(deterministic=True) for attribute in node.attribute)
        inputs = [known.get(name, name) for name in node.input]
        outputs = [types.get(name) for name in node.output]
        digest = hashlib.sha256(repr((node.domain, node.op_type, attributes, inputs, outputs)).encode()).hexdigest()
        known |= {name: f"{digest} {place}" for place, name in enumerate(node.output) if name}
        nodes[digest] += 1
    return nodes, [known.get(value.name) for value in graph.output]


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
