"""What the operators of onnxruntime and OpenVINO are at heart, so that two profiles can be laid side by side.

Imports nothing of either.
"""

from collections import defaultdict

CONVOLUTION, PRODUCT, POOLING, CONVERSION, MOVEMENT, OTHER = FAMILIES = (
    "convolution", "matrix product", "pooling", "quantize/dequantize", "data movement", "other",
)  # fmt: skip
OUTSIDE = "outside kernels"
PARTS = (
    (CONVERSION, ("QuantizeLinear", "DequantizeLinear", "FakeQuantize", "Convert")),  # before MatMul's quantized names
    (CONVOLUTION, ("Conv",)),
    (PRODUCT, ("Gemm", "MatMul", "FullyConnected")),
    (POOLING, ("Pool", "ReduceMean")),  # a global average is a mean over the last axes
    (MOVEMENT, ("Reorder", "Transpose", "Reshape", "Flatten", "Concat", "Slice", "Gather", "Squeeze", "Identity", "MemoryInput")),
)  # fmt: skip
PRECISIONS = {
    "i8": "int8",
    "u8": "int8",
    "uint8": "int8",
    "int8": "int8",
    "float": "float",
    "f32": "float",
    "fp32": "float",
}


def family_of(op_type):
    """Return the family of an operator, by its name in onnxruntime's optimized graph or in OpenVINO's profile."""
    if op_type.startswith("Dynamic") and "MatMul" in op_type:
        return PRODUCT
    return next((family for family, parts in PARTS if any(part in op_type for part in parts)), OTHER)


def precision_of(text):
    """Return the precision in an input's type ("uint8") or at the end of an OpenVINO kernel ("jit_avx2_I8")."""
    ending = text.rsplit("_", 1)[-1].lower()
    return PRECISIONS.get(ending, ending)


def by_family(kernels):
    """Return {family: (microseconds, what it ran as)} of [(operator, kernel, microseconds)], what costs most first.

    `kernel` says in what an operator ran: the type of its input, or OpenVINO's name of the kernel.
    """
    times = defaultdict(lambda: defaultdict(float))
    for op_type, kernel, microseconds in kernels:
        if microseconds > 0:  # OpenVINO lists what it fused into others, too
            times[family_of(op_type)][_ran_as(op_type, kernel)] += microseconds
    return {family: (sum(times[family].values()), _listed(times[family])) for family in FAMILIES if family in times}


def _ran_as(op_type, kernel):
    named = "_" in kernel and not kernel.startswith(("unknown", "undef"))
    return f"{op_type} in {precision_of(kernel)}" + (f" ({kernel})" if named else "")


def _listed(spent):
    ordered = sorted(spent.items(), key=lambda item: -item[1])
    return ", ".join(f"{how}: {time:,.0f}" if len(ordered) > 1 else how for how, time in ordered)
