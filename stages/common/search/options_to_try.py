"""The session options that could make a CNN's file faster or slower, and how a session is opened with one of them."""

from dataclasses import dataclass

from stages.common.session.runtime import default_options, open_with

DEFAULT = "default"  # the name of a session without any of them


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
