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
    """Return {family: (microseconds, what it ran as)} of [(operator, kernel, microseconds)], kernels that cost most first.

    `kernel` says in what an operator ran: the type of its input, or OpenVINO's name of the kernel.
    """
    times = defaultdict(lambda: defaultdict(float))
    for op_type, kernel, microseconds in kernels:
        times[family_of(op_type)][op_type, kernel] += microseconds
    found = {}
    for family in FAMILIES:
        if family in times:
            ordered = sorted(times[family].items(), key=lambda item: -item[1])
            how = [_ran_as(op_type, kernel) for (op_type, kernel), spent in ordered if spent > 0]
            found[family] = (sum(times[family].values()), ", ".join(dict.fromkeys(how)))
    return found


def _ran_as(op_type, kernel):
    precision = precision_of(kernel)
    return f"{op_type} in {precision}" + ("" if precision == kernel or "_" not in kernel else f" ({kernel})")
