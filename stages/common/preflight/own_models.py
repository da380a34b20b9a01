"""A model and data of the user's own, checked in seconds and all at once, before anything long is started.

The `machine` stage, which runs first and always, lists what is found here together with the mistakes in params.yaml.
Models that are trained here are not looked at: they do not exist yet, and export checks them.
"""

import tempfile
from pathlib import Path

import numpy as np

from stages.common.images import to_input
from stages.common.preflight.arrays import check_arrays, replace_command, training_labels, validation_labels
from stages.common.preflight.recipe_nodes import node_mistakes, recipes_with_nodes
from stages.common.session.model_io import as_logits, output_names, parts
from stages.common.workspace import UserError

TRIED = 4  # images that the model is run on, where it takes any number


def own_mistakes(params, root):
    """Yield a sentence for everything that keeps a model that is not trained here, or its data, from being measured.

    `params`: the content of params.yaml; paths in sentences are relative to `root`.
    """
    own = [name for name in params["models"] if name not in params["train"]]
    data, fetched = f"data/{params['dataset']}", params["dataset"] in params["fetch_data"]
    if not own and fetched:
        return
    plans = searches(params)
    arrays, mistakes = check_arrays(root, data, fetched=fetched, models=params["models"])
    yield from mistakes
    if params["train"] and not fetched:
        yield from training_labels(root, data, arrays)
    elif plans and not fetched:
        yield from validation_labels(root, data, arrays)
    alone = len(params["models"]) == 1
    for name in own:
        where, preprocessed = f"models/{name}/onnx/fp32.onnx", root / f"models/{name}/preprocessed.onnx"
        if (root / where).is_file():
            settings, plan = params["models"][name], plans.get(name)
            mistakes = list(model_mistakes(root / where, where, name, settings, arrays, data, plan=plan))
            recipes = recipes_with_nodes(params, plans, name)
            if recipes and not mistakes:
                mistakes = node_mistakes(root / where, preprocessed, where, recipes, alone=alone)
            yield from mistakes


def searches(params):
    """Return the section `tune`; nothing if that is not a mapping of mappings, which the parameter check says."""
    plans = params.get("tune")
    return plans if isinstance(plans, dict) and all(isinstance(plan, dict) for plan in plans.values()) else {}


def untracked(params, root):
    """Yield the files of the user's own, relative to `root`, that DVC does not follow: an experiment would lack them."""
    files = [f"models/{name}/onnx/fp32.onnx" for name in params["models"] if name not in params["train"]]
    if files and params["dataset"] not in params["fetch_data"]:
        arrays = ["train-images", "test-images", "test-labels"] + ["train-labels"] * bool(searches(params))
        files += [f"data/{params['dataset']}/{array}.npy" for array in arrays]
    for file in files:
        if (root / file).is_file() and not is_tracked(root, file):
            yield file


def is_tracked(root, file):
    """Return whether a file, or a folder that it is in, has been given to `dvc add`."""
    path = Path(file)
    return any((root / f"{part}.dvc").is_file() for part in (path, *path.parents) if part != Path())


def model_mistakes(path, where, name, settings, arrays, data, *, plan=None):
    """Yield what is wrong with one model file, by itself and against the arrays; it is run if nothing else is wrong.

    `settings`, `plan`: what params.yaml has of it under `models` and, if anything, under `tune`.
    """
    import onnx  # noqa: PLC0415 -- 0.4 s that a pipeline without a model of the user's own need not pay

    from stages.common.preflight.graph import fixed_shape, graph_mistakes, real_inputs, weight_mistakes  # noqa: PLC0415

    if not path.stat().st_size:
        yield f"{where} is an empty file: put the model there"
        return
    try:
        model = onnx.load(path, load_external_data=False)
    except Exception as error:  # protobuf's own class, and there is more than one protobuf
        yield f"{where} is not an ONNX model ({' '.join(str(error).split())[:80]}): export it again"
        return
    scaling, output = settings["input"], settings["evaluate"].get("output")
    dtype = scaling.get("dtype", "float32")
    found = [*graph_mistakes(model, path, where, dtype=dtype, output=output), *weight_mistakes(model, where)]
    inputs = real_inputs(model.graph)
    shape = fixed_shape(inputs[0]) if len(inputs) == 1 else None
    if shape:
        found += batch_mistakes(shape[0], where, name, settings, plan or {})
        found += shape_mistakes(shape, where, name, scaling, arrays, data)
    if not found and "test" in arrays:
        found += run_mistakes(path, where, output, shape, scaling, arrays, data)
    yield from found


def batch_mistakes(fixed, where, name, settings, plan):
    """Yield whether the benchmark, or the search for a recipe, asks for batches that the file does not take."""
    batches, timed = settings["benchmark"]["batches"], plan.get("batch", fixed)
    if fixed and timed != fixed:
        yield f"`tune.{name}.batch` is {timed}, and {where} takes batches of {fixed} only: write {fixed}, or export it with a free batch"
    if fixed and batches != [fixed]:
        yield f"`models.{name}.benchmark.batches` is {batches}, and {where} takes batches of {fixed} only: write [{fixed}], or export it with a free batch"


def shape_mistakes(shape, where, name, scaling, arrays, data):
    """Yield how the images, scaled, differ from what the file takes; `shape`: its axes, None where any size is taken."""
    for part in ("train", "test"):
        if part not in arrays:
            continue
        path = f"{data}/{part}-images.npy"
        stored, wanted, problem = arrays[part].shape[1:], shape[1:], ""
        try:
            got = to_input(arrays[part][:1], **scaling).shape[1:]
        except UserError as error:
            got, problem = stored, str(error).removesuffix(".")
        if _fits(got, wanted) and not problem:
            continue
        text = f"{where} takes images ({', '.join('any' if size is None else str(size) for size in wanted)})"
        scaled = "" if stored == got else f", {got} after `models.{name}.input`"
        fix = _how_to_fit(path, got, wanted, name)
        if problem and _fits(stored, wanted) and stored[-1] in (1, 3, 4) and not scaling.get("channels_last"):
            fix = f"if the last axis are the channels, write `channels_last: true` under `models.{name}.input`"
        if fix or not problem:
            fix = fix or "store them as the model takes them, or look at `channels` and `repeat`"
            yield f"{path} has images {stored}{scaled}, and {text}: {fix}"
        else:
            yield f"{path} and `models.{name}.input` do not fit: {problem}"


def _fits(got, wanted):
    return len(got) == len(wanted) and all(size in (None, own) for own, size in zip(got, wanted, strict=True))


def _how_to_fit(path, got, wanted, name):
    """Return how to move the channels, in words with the command, if that is all that is wrong."""
    if len(got) + 1 == len(wanted) and wanted[0] in (None, 1, 3):
        with_axis = f"numpy.load({path!r})[:, None]"
        command = replace_command(path, "import numpy", f"numpy.save(open({{new!r}}, 'wb'), {with_axis})")
        return f"an axis for the channels is missing, `{command}` adds it"
    last_to_first, first_to_last = (got[-1], *got[:-1]), (*got[1:], got[0])
    if _fits(last_to_first, wanted):
        return f"its channels are last and the model's first, `{_moved(path, -1, 1)}` moves them"
    if _fits(first_to_last, wanted):
        return f"its channels are first and the model's last, `{_moved(path, 1, -1)}` moves them; then write `channels_last: true` under `models.{name}.input`"
    return ""


def _moved(path, source, target):
    moved = f"numpy.moveaxis(numpy.load({path!r}), {source}, {target}).copy()"
    return replace_command(path, "import numpy", f"numpy.save(open({{new!r}}, 'wb'), {moved})")


def _raised_otherwise(path, where, output, batch, values):
    """Yield whether raising an old opset changes the scores: all variants would be of another model."""
    import onnx  # noqa: PLC0415

    from stages.common.model_file import LEAST_OPSET, opset_of, with_least_opset  # noqa: PLC0415
    from stages.common.session.runtime import open_session  # noqa: PLC0415

    model = onnx.load(path)
    if opset_of(model) >= LEAST_OPSET:
        return
    with tempfile.TemporaryDirectory() as folder:
        onnx.save(with_least_opset(model), f"{folder}/raised.onnx")
        session = open_session(f"{folder}/raised.onnx", threads=1)
        again = session.run([output or output_names(session)[0]], {session.get_inputs()[0].name: batch})[0]
    if not np.allclose(again, values, rtol=1e-3, atol=1e-3 * np.abs(values).max()):
        yield f"{where} has opset {opset_of(model)}, and raised to {LEAST_OPSET}, which quantization needs, it gives other scores: export it anew with opset {LEAST_OPSET} or later"


def run_mistakes(path, where, output, shape, scaling, arrays, data):
    """Yield what a real batch shows: that the file does not run, gives no scores, or fewer classes than there are labels."""
    from stages.common.session.runtime import open_session  # noqa: PLC0415

    fixed = shape[0] if shape else None
    [(batch, _)] = parts(to_input(arrays["test"][: fixed or TRIED], **scaling), fixed)
    try:
        session = open_session(path, threads=1)
        values = session.run([output or output_names(session)[0]], {session.get_inputs()[0].name: batch})[0]
    except Exception as error:  # onnxruntime has a class for every status
        yield f"{where} does not run on the first test images: {' '.join(str(error).split())[:300]}"
        return
    yield from _raised_otherwise(path, where, output, batch, values)
    logits = as_logits(values)
    if logits.ndim != 2 or len(logits) != len(batch):
        yield f"{where} gives an output {values.shape} for {len(batch)} images, and (images, classes) is expected: export it with a score for each class"
        return
    if logits.shape[1] < 2:
        yield f"{where} gives one number an image, which has no classes to choose from: export it with a score for each class, two if it is yes or no"
        return
    for array in ("test-labels", "train-labels"):
        labels = arrays.get(array)
        if labels is not None and not 0 <= labels.min() <= labels.max() < logits.shape[1]:
            yield f"{data}/{array}.npy has labels from {labels.min()} to {labels.max()}, and {where} has {logits.shape[1]} classes, 0 to {logits.shape[1] - 1}: number the labels as the model does"
