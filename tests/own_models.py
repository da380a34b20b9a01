"""Classifiers as somebody else could have made them, and the whole pipeline run on one of them, without DVC around it."""

import importlib
import itertools
import re
from pathlib import Path

import numpy as np
import onnx
import yaml
from onnx import TensorProto, helper, numpy_helper

CLASSES = 5


class Classifier:
    """A network written node by node under its maker's own names; `save` writes it with the oddities that are asked for."""

    def __init__(self, shape, *, batch="N", dtype=TensorProto.FLOAT, name="pixels:0", seed=0):
        self.random, self.nodes, self.weights = np.random.default_rng(seed), [], []
        self.input = helper.make_tensor_value_info(name, dtype, [batch, *shape])
        self.batch, self.last = batch, name

    def add(self, op_type, *constants, source=None, **attributes):
        """Add a node that reads the last tensor and constants; nodes have no names."""
        output = f"t{len(self.nodes)}"
        names = []
        for values in constants:
            names.append(f"w{len(self.weights)}")
            self.weights.append(numpy_helper.from_array(np.asarray(values), names[-1]))
        self.nodes.append(helper.make_node(op_type, [source or self.last, *names], [output], **attributes))
        self.last = output
        return self

    def normal(self, *shape):
        return (self.random.normal(size=shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)

    def conv(self, outputs, inputs, *kernel):
        padding = [size // 2 for size in kernel] * 2
        return self.add("Conv", self.normal(outputs, inputs, *kernel), np.zeros(outputs, np.float32), pads=padding).add(
            "Relu"
        )

    def dense(self, outputs, inputs):
        return self.add("Gemm", self.normal(outputs, inputs), np.zeros(outputs, np.float32), transB=1)

    def save(self, path, outputs=None, opset=18, ir_version=10, weights_as_inputs=False, element=TensorProto.FLOAT):
        """Write the file; `outputs`: {name: tensor}, the last tensor as "scores" if None. Shapes are left to inference."""
        outputs = outputs or {"scores": self.last}
        nodes = [*self.nodes, *(helper.make_node("Identity", [tensor], [name]) for name, tensor in outputs.items())]
        extra = [
            helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
            for tensor in self.weights
            if weights_as_inputs
        ]
        values = [helper.make_tensor_value_info(name, element, None) for name in outputs]
        graph = helper.make_graph(nodes, "theirs", [self.input, *extra], values, self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)
        for value in model.graph.output:
            value.type.tensor_type.ClearField("shape")
        model = onnx.shape_inference.infer_shapes(model)
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        onnx.save(model, path)
        return path


def images_like(shape, count, seed, dtype=np.float32):
    """Return random images (count, *shape), each with its own mean along the first and the last axis, so that a network
    decides for different classes: float32 around zero, or uint8.
    """
    random = np.random.default_rng(seed)
    flat = [1] * (len(shape) - 1)
    means = random.normal(size=(count, shape[0], *flat)) + random.normal(size=(count, *flat, shape[-1]))
    values = random.normal(size=(count, *shape)) + 2 * means
    return (128 + 30 * values).clip(0, 255).astype(np.uint8) if dtype == np.uint8 else values.astype(np.float32)


def save_data(folder, shape, *, dtype=np.float32, train=96, test=50, labelled=True):
    """Write the arrays of the contract; labels are random, or empty."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for seed, (part, count) in enumerate({"train": train, "test": test}.items()):
        np.save(folder / f"{part}-images.npy", images_like(shape, count, seed, dtype))
    labels = np.random.default_rng(2).integers(0, CLASSES, test) if labelled else np.empty(0, np.int64)
    np.save(folder / "test-labels.npy", labels)


def own_params(params, *, batches=(1, 4), input=None, evaluate=None):
    """Return parameters of the repository made small for a model "theirs" on a dataset "own"."""
    recipes = {name: params["calibrate_quantize"][name] for name in ("static-s8s8", "static-u8s8")}
    return params | {
        "dataset": "own",
        "fetch_data": {},
        "train": {},
        "models": {
            "theirs": {
                "input": input or {},
                "evaluate": {"images": 50, **(evaluate or {})},
                "benchmark": {"batches": list(batches), "seconds": 0.2},
                "explain": {"images": 50, "noise_images": 10},
            }
        },
        "quantize_dynamic": {"dynamic-quint8": {"weight_type": "QUInt8"}},
        "calibrate_quantize": recipes,
        "variants": ["dynamic-quint8", *recipes],
        "calibrate": {"seed": 0, "images": 30, "batch_size": 7, "method": "MinMax"},
        "verify_load": {"runtimes": [], "images": 8, "strict": False},
        "evaluate": {"batch_size": 20, "threads": 1},
        "benchmark": params["benchmark"] | {"rounds": 2},
        "explain": {"layers_of": "static-u8s8", "time": {"rounds": 7, "seconds": 0.2}},
        "tune": {},
        "sensitivity": {"theirs": {"variant": "static-u8s8", "images": [5, 20], "seeds": 3, "test_images": 50}},
    }


def commands(params, repository):
    """Yield the command of every stage instance, in the order of dvc.yaml, which is that of the pipeline."""
    for stage in yaml.safe_load((repository / "dvc.yaml").read_text())["stages"].values():
        sources = stage.get("matrix", {"key": stage["foreach"]} if "foreach" in stage else {})
        names = [list(params[source.strip("${}")]) for source in sources.values()]
        for combination in itertools.product(*names):
            chosen = dict(zip(sources, combination, strict=True))
            item = params["sensitivity"].get(chosen.get("key"), {}) | chosen
            known = {"dataset": params["dataset"], "explain.layers_of": params["explain"]["layers_of"], **chosen}
            known |= {f"item.{key}": value for key, value in item.items()}
            yield re.sub(r"\$\{([^}]+)\}", lambda hole, known=known: known[hole[1]], stage.get("do", stage)["cmd"])


def run_pipeline(params, repository):
    """Run every stage's main in this process, in the working folder, which has params.yaml, the model and the arrays."""
    if not Path("stages").exists():
        Path("stages").symlink_to(repository / "stages")  # for the processes that stages start
    for command in commands(params, repository):
        _, _, module, *arguments = command.split()
        importlib.import_module(module).main(*arguments)


def save_many(path, shape, count, dtype):
    """Write `count` images, a thousand random ones over and over, without ever holding them all in memory."""
    block = images_like(shape, 1000, 0, dtype)
    stored = np.lib.format.open_memmap(path, "w+", dtype, (count, *shape))
    for start in range(0, count, len(block)):
        stored[start : start + len(block)] = block[: count - start]
    stored.flush()
    return path


def prediction_megabytes(onnx_path, images_path, images):
    """Predict; return the peak resident memory of this process in MB, to be asked for in a process of its own."""
    from stages.common.session.runtime import predict_images  # noqa: PLC0415 -- the process that asks is to stay small
    from stages.tools.check_calibration import peak_megabytes  # noqa: PLC0415

    predict_images(onnx_path, images_path, {"scale": 1 / 255}, images=images, batch_size=250, threads=1)
    return peak_megabytes()
