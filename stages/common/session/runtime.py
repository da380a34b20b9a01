"""ONNX Runtime sessions: one set of options for verification, evaluation and benchmark, and streamed prediction."""

import numpy as np

from stages.common.images import input_batches, load_images
from stages.common.session.concurrency import map_in_order
from stages.common.session.model_io import as_logits, input_of, judged_output, output_names, run
from stages.common.workspace import UserError

PROVIDERS = ["CPUExecutionProvider"]


def open_session(path, *, threads, **instruments):
    """Return an InferenceSession with the options that every stage uses.

    All graph optimizations, sequential execution, `threads` intra-op threads, CPU. `instruments` are attributes of
    SessionOptions that watch and change nothing: enable_profiling, optimized_model_filepath. A file that does not load
    raises onnxruntime's own exception: whether that is a result or an error is for the stage to say.
    """
    import onnxruntime  # noqa: PLC0415 -- 0.15 s that a stage without a session need not pay

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 3  # errors; warnings about constant folding say nothing that a result does not
    for name, value in instruments.items():
        setattr(options, name, value)
    return onnxruntime.InferenceSession(str(path), options, providers=PROVIDERS)


def predict_images(onnx_path, images_path, scaling, *, images, batch_size, threads, output=None):
    """Return the logits (images, classes) float32 of the first `images` stored images, streamed from the disk.

    `scaling`: the arguments of `to_input`; `output`: which one is judged, where the file has several. A batch that the
    file fixes takes the place of `batch_size`; `threads` batches are predicted at a time, each on one thread, so that
    their number costs memory and changes no result. Raises UserError if there are fewer images, or if an image or a
    logit is not finite.
    """
    stored = load_images(images_path)
    if not 1 <= images <= len(stored):
        raise UserError(
            f"evaluate.images of the model is {images} and {images_path} has {len(stored)} images: ask for 1 to {len(stored)}."
        )
    session = open_session(onnx_path, threads=1)
    judged, (_, fixed) = judged_output(output_names(session), output, onnx_path), input_of(session)
    batches = input_batches(stored, batch_size=fixed or batch_size, path=images_path, limit=images, **scaling)

    def predict(batch):
        return np.concatenate([as_logits(found) for [found] in run(session, batch, [judged])])

    logits = np.concatenate(list(map_in_order(predict, batches, threads)))
    bad = np.flatnonzero(~np.isfinite(logits).all(axis=1))
    if len(bad):
        raise UserError(
            f"{onnx_path} gives non-finite logits for {len(bad)} of {images} images, the first is {bad[0]}: "
            f"make verify_load.images at least {bad[0] + 1} to record it as not working, or take it out of params.yaml."
        )
    return logits
