"""The processor under the numbers: its name, its best int8 instructions, and the cores that this process may use."""

import os
import platform
from pathlib import Path

import psutil

# The best path that onnxruntime's int8 kernels find, first match wins. Keys are the names in metrics; values are flags.
INT8_PATHS = {
    "amx_int8": {"amx_int8"},
    "avx512_vnni": {"avx512_vnni"},
    "avx_vnni": {"avx_vnni"},
    "avx512": {"avx512f", "avx512bw"},
    "avx2": {"avx2"},
    "sse4_1": {"sse4_1"},
    "neon_i8mm": {"i8mm"},
    "neon_dotprod": {"asimddp"},
    "neon": {"asimd"},
}

# Above these a benchmark warns: other work slows the calls and widens the intervals.
BUSY_LOAD_PER_CORE = 0.5
BUSY_STEAL_PERCENT = 2.0

# int8 paths that add products in 32 bits. Elsewhere u8 x s8 products are added in 16 bits and can saturate.
EXACT_INT8 = {"amx_int8", "avx512_vnni", "avx_vnni", "neon_i8mm", "neon_dotprod", "neon"}


def saturating(isa, recipes):
    """Return the names of the static recipes whose int8 products may saturate on the int8 path `isa`.

    Without VNNI two products of an unsigned and a signed 8-bit number are added in 16 bits: 2 x 255 x 127 does not fit.
    onnxruntime makes signed activations unsigned on x86, so the type of the weights decides; a reduced range of 7 bits
    fits. The sums of dynamic variants showed no such error.
    """
    if isa in EXACT_INT8:
        return []
    return [
        name for name, recipe in recipes.items() if recipe["weight_type"] == "QInt8" and not recipe.get("reduce_range")
    ]


def saturation_sentence(isa, names):
    """Return what has to be known about such variants on a processor, in words."""
    listed = ", ".join(f"`{name}`" for name in names)
    return (
        f"This processor has no VNNI ({isa}): it adds pairs of 8-bit products in 16 bits, where they can saturate. The "
        f"accuracy of {listed} belongs to it, and may be better on another; `reduce_range: true` in a recipe avoids it."
    )


def cpu_model_and_flags():
    """Return the processor's name and the set of its instruction set flags."""
    try:
        lines = [line.split(":", 1) for line in Path("/proc/cpuinfo").read_text().splitlines() if ":" in line]
    except OSError:
        return _ask_cpuinfo()
    fields = {name.strip(): value.strip() for name, value in reversed(lines)}
    model = fields.get("model name") or fields.get("Hardware") or platform.machine()
    return model, set((fields.get("flags") or fields.get("Features") or "").split())


def _ask_cpuinfo():
    import cpuinfo  # noqa: PLC0415 -- a second of work that Linux does not need

    info = cpuinfo.get_cpu_info()
    flags = set(info.get("flags", []))
    if platform.machine() == "arm64":  # macOS lists no flags; every Apple processor with this name has these
        flags |= {"asimd", "asimddp"}
    return info.get("brand_raw", platform.machine()), flags


def best_int8_path(flags):
    """Return the name of the best int8 path for a set of flags ("avx512_vnni", "avx2" ...), or "unknown"."""
    return next((name for name, needed in INT8_PATHS.items() if needed <= flags), "unknown")


def physical_cores():
    """Return the number of physical cores of the host."""
    return psutil.cpu_count(logical=False) or psutil.cpu_count() or 1


def usable_cores(quota_file="/sys/fs/cgroup/cpu.max"):
    """Return how many cores this process may keep busy: the affinity mask, cut by the container's CPU quota."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path(quota_file).read_text().split()
        return min(allowed, max(1, int(quota) // int(period)))
    except (OSError, ValueError):  # no cgroup v2, or "max"
        return allowed


def load_per_core():
    """Return the system's load average of the last minute, divided by the usable cores."""
    return os.getloadavg()[0] / usable_cores() if hasattr(os, "getloadavg") else 0.0


def steal_seconds():
    """Return (stolen, all) CPU seconds since boot; stolen ones went to other guests of the same host."""
    times = psutil.cpu_times()
    return getattr(times, "steal", 0.0), sum(times)
