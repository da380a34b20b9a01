"""Export a trained network to ONNX: one file, dynamic batch, the same bytes in any checkout, checked against PyTorch.

python -m stages.export cnn models/cnn/model.pt data/.../test-images.npy models/cnn/onnx/fp32.onnx ... (see dvc.yaml)
"""

import io
import os

import numpy as np
import onnx
import torch

from stages.common.images import first_input
from stages.common.networks import ARCHITECTURES
from stages.common.session.runtime import open_session
from stages.common.workspace import UserError, read_params, run_main, whole_file, write_metrics

EXAMPLE_BATCH = 2  # 1 would be taken for a constant
PARITY_BATCHES = (1, 3, 64)


def export(network, example, *, opset):
    """Return the network (in evaluation mode) as an ONNX ModelProto with input "input" and output "logits".

    `example` is a batch of real input (N, C, H, W) float32. Raises UserError if the exporter wrote another opset.
    """
    program = torch.onnx.export(
        network,
        (torch.from_numpy(example),),
        dynamo=True,
        opset_version=opset,
        input_names=["input"],
        output_names=["logits"],
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        verbose=False,
    )
    model = program.model_proto
    actual = {entry.domain: entry.version for entry in model.opset_import}[""]
    if actual != opset:
        raise UserError(
            f"export.opset is {opset} and torch's exporter wrote opset {actual}: set export.opset to {actual}."
        )
    forget_checkout(model)
    onnx.checker.check_model(model, full_check=True)
    return model


def forget_checkout(model):
    """Remove stack traces (they hold paths), names of Python objects and the build tag of torch, in place."""
    model.producer_version = model.producer_version.split("+")[0]
    graph = model.graph
    for part in (model, graph, *graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")


def parity(network, session, inputs):
    """Return (largest absolute logit difference, share of equal decisions) between PyTorch and a session.

    Of `inputs` (65, C, H, W) float32 a whole batch of 1, 3 and 64 and a short one after it are compared, so that a batch
    size frozen into the file shows. No more: of a large network every image costs.
    """
    differences, agreements = [], []
    for batch_size in PARITY_BATCHES:
        for batch in (inputs[:batch_size], inputs[batch_size : batch_size + 1]):
            with torch.no_grad():
                expected = network(torch.from_numpy(batch)).numpy()
            [actual] = session.run(["logits"], {"input": batch})
            differences.append(float(np.abs(expected - actual).max()))
            agreements.append(float((expected.argmax(1) == actual.argmax(1)).mean()))
    return max(differences), float(np.mean(agreements))


def main(model, model_path, images_path, onnx_path, metrics_path):
    architecture = read_params(f"train.{model}.architecture")
    network = ARCHITECTURES[architecture]()
    with open(model_path, "rb") as file:
        network.load_state_dict(torch.load(io.BytesIO(file.read()), weights_only=True))
    network.eval()
    inputs = first_input(images_path, max(PARITY_BATCHES) + 1, **read_params(f"models.{model}.input"))
    settings = read_params("export")
    opset, limit = settings["opset"], settings["max_abs_difference"]
    proto = export(network, inputs[:EXAMPLE_BATCH], opset=opset)
    with whole_file(onnx_path) as temporary:
        temporary.write_bytes(proto.SerializeToString(deterministic=True))
        difference, agreement = parity(network, open_session(temporary, threads=1), inputs)
        if not difference <= limit:
            raise UserError(
                f"{onnx_path} differs from PyTorch by up to {difference:.2g} in its logits and export.max_abs_difference is {limit:g}: "
                "the export is wrong, or raise the limit if you know why."
            )
        size = os.path.getsize(temporary)
    write_metrics(
        metrics_path,
        {model: {"max_abs_difference": difference, "argmax_agreement": agreement, "opset": opset, "size_bytes": size}},
    )
    print(f"{model}: {size:,} bytes, opset {opset}, logits within {difference:.1e} of PyTorch at batches 1, 3 and 64")


if __name__ == "__main__":
    run_main(main)
