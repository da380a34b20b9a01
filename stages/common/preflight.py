"""A model and data of the user's own, checked in seconds and all at once, before anything long is started.

The `machine` stage, which runs first and always, lists what is found here together with the mistakes in params.yaml.
Models that are trained here are not looked at: they do not exist yet, and export checks them.
"""

import tempfile
from pathlib import Path

import numpy as np

from stages.common.images import check_finite, labels_or_none, load_images, load_labels, to_input
from stages.common.model_io import as_logits, output_names, parts
from stages.common.params_check import missing
from stages.common.workspace import UserError

SAMPLE = 64  # images of an array that are looked at here, evenly spread; where they are used, all of them are
TRIED = 4  # images that the model is run on, where it takes any number


def own_mistakes(params, root):
    """Yield a sentence for everything that keeps a model that is not trained here, or its data, from being measured.

    `params`: the content of params.yaml; paths in sentences are relative to `root`.
    """
    own = [name for name in params["models"] if name not in params["train"]]
    data, fetched = f"data/{params['dataset']}", params["dataset"] in params["fetch_data"]
    if not own and fetched:
        return
    arrays, mistakes = _arrays(root, data, fetched=fetched)
    yield from mistakes
    if params["train"] and not fetched:
        yield from _training_labels(root, data, arrays)
    elif params["tune"] and not fetched:
        yield from _validation_labels(root, data, arrays)
    for name in own:
        where = f"models/{name}/onnx/fp32.onnx"
        if (root / where).is_file():
            yield from model_mistakes(root / where, where, name, params["models"][name], arrays, data)


def untracked(params, root):
    """Yield the files of the user's own, relative to `root`, that DVC does not follow: an experiment would lack them."""
    files = [f"models/{name}/onnx/fp32.onnx" for name in params["models"] if name not in params["train"]]
    if files and params["dataset"] not in params["fetch_data"]:
        arrays = ["train-images", "test-images", "test-labels", *(["train-labels"] if params["tune"] else [])]
        files += [f"data/{params['dataset']}/{array}.npy" for array in arrays]
    for file in files:
        if (root / file).is_file() and not is_tracked(root, file):
            yield file


def is_tracked(root, file):
    """Return whether a file, or a folder that it is in, has been given to `dvc add`."""
    path = Path(file)
    return any((root / f"{part}.dvc").is_file() for part in (path, *path.parents) if part != Path())


def _arrays(root, data, *, fetched):
    """Return ({array: memory map}, mistakes) of what is there; what a stage will fetch may be missing."""
    found, mistakes = {}, []
    for part in ("train", "test"):
        path = f"{data}/{part}-images.npy"
        if not (root / path).is_file():
            continue  # the parameter check names it
        try:
            images = found[part] = load_images(root / path)
            chosen = np.unique(np.linspace(0, len(images) - 1, SAMPLE).astype(int))
            check_finite(images[chosen], path, chosen)
        except UserError as error:
            mistakes.append(_plain(error, root))
    if len(found) == 2 and found["train"].shape[1:] != found["test"].shape[1:]:
        mistakes.append(
            f"{data}/train-images.npy has images {found['train'].shape[1:]} and {data}/test-images.npy {found['test'].shape[1:]}: make both as the model takes them"
        )
    path = f"{data}/test-labels.npy"
    if not (root / path).is_file() and not (root / f"{path}.dvc").is_file() and not fetched:
        command = f"python -c \"import numpy; numpy.save({path!r}, numpy.empty(0, 'int64'))\""
        mistakes.append(f"{missing(path)}; if there are no labels, `{command}` says so")
    elif (root / path).is_file() and "test" in found:
        try:
            found["labels"] = labels_or_none(root / path, len(found["test"]))
        except UserError as error:
            mistakes.append(_plain(error, root))
    return found, mistakes


def _training_labels(root, data, arrays):
    """Yield what training lacks: it learns from labels, and draws its curve with those of the test images."""
    path = f"{data}/train-labels.npy"
    if "train" in arrays and not (root / path).is_file():
        yield missing(path)
    elif "train" in arrays:
        try:
            load_labels(root / path, len(arrays["train"]))
        except UserError as error:
            yield _plain(error, root)
    if arrays.get("labels", ()) is None:
        yield f"{data}/test-labels.npy is empty, and `train` draws its curve with them: put them there, or take the models out of `train`"


def _validation_labels(root, data, arrays):
    """Yield what `tune` lacks: it judges by images of the training set, with their labels if they are known."""
    path = f"{data}/train-labels.npy"
    if not (root / path).is_file() and not (root / f"{path}.dvc").is_file():
        command = f"python -c \"import numpy; numpy.save({path!r}, numpy.empty(0, 'int64'))\""
        yield f"{missing(path)}, since `tune` judges by training images; if there are no labels, `{command}` says so"
    elif "train" in arrays and (root / path).is_file():
        try:
            labels_or_none(root / path, len(arrays["train"]))
        except UserError as error:
            yield _plain(error, root)


def _plain(error, root):
    """Return a UserError's sentence as one of a list: without the full stop, paths relative to `root`."""
    return str(error).removesuffix(".").replace(f"{root}/", "")


def model_mistakes(path, where, name, settings, arrays, data):
    """Yield what is wrong with one model file, by itself and against the arrays; it is run if nothing else is wrong."""
    import onnx  # noqa: PLC0415 -- 0.4 s that a pipeline without a model of the user's own need not pay

    from stages.common.preflight_graph import fixed_shape, graph_mistakes, real_inputs, weight_mistakes  # noqa: PLC0415

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
        found += batch_mistakes(shape[0], where, name, settings)
        found += shape_mistakes(shape, where, name, scaling, arrays, data)
    if not found and "test" in arrays:
        found += run_mistakes(path, where, output, shape, scaling, arrays, data)
    yield from found


def batch_mistakes(fixed, where, name, settings):
    """Yield whether the benchmark asks for batches that the file does not take."""
    batches = settings["benchmark"]["batches"]
    if fixed and batches != [fixed]:
        yield f"`models.{name}.benchmark.batches` is {batches}, and {where} takes batches of {fixed} only: write [{fixed}], or export it with a free batch"


def shape_mistakes(shape, where, name, scaling, arrays, data):
    """Yield how the images, scaled, differ from what the file takes; `shape`: its axes, None where any size is taken."""
    for part in ("train", "test"):
        if part not in arrays:
            continue
        path = f"{data}/{part}-images.npy"
        try:
            got = to_input(arrays[part][:1], **scaling).shape[1:]
        except UserError as error:
            yield f"{path} and `models.{name}.input` do not fit: {str(error).removesuffix('.')}"
            continue
        wanted = shape[1:]
        if _fits(got, wanted):
            continue
        text = f"{where} takes images ({', '.join('any' if size is None else str(size) for size in wanted)})"
        stored = arrays[part].shape[1:]
        scaled = "" if stored == got else f", {got} after `models.{name}.input`"
        yield f"{path} has images {stored}{scaled}, and {text}: {_how_to_fit(path, got, wanted, name)}"


def _fits(got, wanted):
    return len(got) == len(wanted) and all(size in (None, own) for own, size in zip(got, wanted, strict=True))


def _how_to_fit(path, got, wanted, name):
    last_to_first, first_to_last = (got[-1], *got[:-1]), (*got[1:], got[0])
    if _fits(last_to_first, wanted):
        return f"its channels are last and the model's first, `{_moved(path, -1, 1)}` moves them"
    if _fits(first_to_last, wanted):
        return f"its channels are first and the model's last, `{_moved(path, 1, -1)}` moves them; then write `channels_last: true` under `models.{name}.input`"
    return "store them as the model takes them, or look at `channels` and `repeat`"


def _moved(path, source, target):
    return f'python -c "import numpy; a = numpy.load({path!r}); numpy.save({path!r}, numpy.moveaxis(a, {source}, {target}).copy())"'


def _raised_otherwise(path, where, output, batch, values):
    """Yield whether raising an old opset changes the scores: all variants would be of another model."""
    import onnx  # noqa: PLC0415

    from stages.common.model_file import LEAST_OPSET, opset_of, with_least_opset  # noqa: PLC0415
    from stages.common.runtime import open_session  # noqa: PLC0415

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
    from stages.common.runtime import open_session  # noqa: PLC0415

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
    labels = arrays.get("labels")
    if labels is not None and not 0 <= labels.min() <= labels.max() < logits.shape[1]:
        yield f"{data}/test-labels.npy has labels from {labels.min()} to {labels.max()}, and {where} has {logits.shape[1]} classes, 0 to {logits.shape[1] - 1}: number the labels as the model does"
