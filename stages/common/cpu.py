"""The processor under the numbers: its name, its best int8 instructions, and the cores that this process may use."""

import os
import platform
from dataclasses import dataclass
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

# Of the CPU time during a measurement; above these it warns: other work slows the calls and widens the intervals.
BUSY_OTHER_PERCENT = 10.0
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
    fields = _cpuinfo_fields()
    if not fields:
        return _ask_cpuinfo()
    model = fields.get("model name") or fields.get("Hardware") or platform.machine()
    return model, set((fields.get("flags") or fields.get("Features") or "").split())


def cpu_revision():
    """Return "family/model/stepping" of the processor, "" where the system does not say.

    Clouds give many generations one name.
    """
    fields = _cpuinfo_fields()
    return "/".join(fields[name] for name in ("cpu family", "model", "stepping") if name in fields)


def _cpuinfo_fields():
    """Return what Linux says of the first processor, {} elsewhere."""
    try:
        lines = [line.split(":", 1) for line in Path("/proc/cpuinfo").read_text().splitlines() if ":" in line]
    except OSError:
        return {}
    return {name.strip(): value.strip() for name, value in reversed(lines)}


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


@dataclass(frozen=True)
class CpuSeconds:
    """CPU seconds of all cores of the host since boot: of this process, of all that was done, and of all that passed.

    `stolen` ones went to other guests of the same host.
    """

    own: float
    busy: float
    stolen: float
    passed: float

    @classmethod
    def now(cls):
        """Return the seconds up to now; a process that was started here counts as own once it has ended."""
        times = psutil.cpu_times()
        stolen, idle = getattr(times, "steal", 0.0), times.idle + getattr(times, "iowait", 0.0)
        # Linux counts what its own guests do twice
        passed = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
        return cls(sum(psutil.Process().cpu_times()[:4]), passed - idle - stolen, stolen, passed)

    def since(self, start):
        """Return {other_work_percent, cpu_steal_percent} of the CPU time that passed since `start`.

        The first is what other processes of this host did meanwhile.
        """
        passed = self.passed - start.passed
        if passed <= 0:
            return {"other_work_percent": 0.0, "cpu_steal_percent": 0.0}
        other = max(0.0, (self.busy - start.busy) - (self.own - start.own))
        found = {"other_work_percent": other, "cpu_steal_percent": self.stolen - start.stolen}
        return {name: round(100 * seconds / passed, 2) for name, seconds in found.items()}


def disturbances(conditions):
    """Yield what disturbed a measurement, in words; `conditions` as CpuSeconds.since returns them."""
    if conditions["other_work_percent"] > BUSY_OTHER_PERCENT:
        yield f"other processes took {conditions['other_work_percent']:.0f} % of the CPU time meanwhile"
    if conditions["cpu_steal_percent"] > BUSY_STEAL_PERCENT:
        yield f"{conditions['cpu_steal_percent']:.1f} % of the CPU time went to other guests of the host meanwhile"
