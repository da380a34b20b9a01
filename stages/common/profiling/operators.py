"""What the operators of onnxruntime's optimized graphs are, by their names. Imports nothing."""

INTEGER = ("QLinear", "Integer", "QGemm", "DynamicQuantizeMatMul")  # within an operator's name


def runs_in_integers(op_type):
    """Return whether a convolution or matrix product of this type multiplies integers."""
    return any(part in op_type for part in INTEGER)
