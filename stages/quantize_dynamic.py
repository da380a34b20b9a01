"""Make a dynamic variant: int8 weights, activation scales computed in every call.

python -m stages.quantize_dynamic dynamic-quint8 models/cnn/preprocessed.onnx models/cnn/onnx/dynamic-quint8.onnx
"""

import onnx
from onnxruntime import quantization

from stages.common.quantization import check_excluded_nodes, count_quantized, onnxruntime_arguments
from stages.common.workspace import read_params, run_main, whole_file


def quantize_dynamic(preprocessed_path, variant_path, **recipe):
    """Quantize one file into another; return (layers quantized, layers in all). Keywords as in params.yaml."""
    model = onnx.load(preprocessed_path)
    check_excluded_nodes(model, recipe)
    if excluded := recipe.get("nodes_to_exclude"):
        # onnxruntime makes <name>_MatMul and <name>_Add of a Gemm before it looks for the names to exclude.
        recipe["nodes_to_exclude"] = [*excluded, *(f"{name}_MatMul" for name in excluded)]
    # The model, not its path: given a path, onnxruntime writes a file beside it.
    quantization.quantize_dynamic(model, variant_path, **onnxruntime_arguments(recipe))
    return count_quantized(model, variant_path)


def main(variant, preprocessed_path, variant_path):
    with whole_file(variant_path) as temporary:
        quantized, total = quantize_dynamic(preprocessed_path, temporary, **read_params(f"quantize_dynamic.{variant}"))
        size = temporary.stat().st_size
    print(f"{variant_path}: {quantized} of {total} layers quantized, {size:,} bytes")


if __name__ == "__main__":
    run_main(main)
