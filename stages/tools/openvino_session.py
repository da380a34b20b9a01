"""A compiled OpenVINO model that looks like an onnxruntime session, so that both are timed by the same code."""

from types import SimpleNamespace

from stages.common.session.runtime import open_session


class OpenVinoSession:
    """A compiled OpenVINO model with the methods of an onnxruntime session; its input and output share memory.

    `profiled`: it counts the time of its kernels, see `kernel_totals`.
    """

    def __init__(self, path, *, threads, profiled=False):
        import openvino  # noqa: PLC0415 -- only in OpenVINO's environment, and only for its files

        settings = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY"}
        settings["INFERENCE_PRECISION_HINT"] = "f32"  # else float layers run in bfloat16 where the processor can
        settings["PERF_COUNT"] = profiled
        core = openvino.Core()
        self.compiled = core.compile_model(core.read_model(path), "CPU", settings)
        self.request, self.calls = self.compiled.create_infer_request(), 0

    def get_inputs(self):
        [value] = self.compiled.inputs
        batch = value.partial_shape[0]
        return [SimpleNamespace(name=value.any_name, shape=[batch.get_length() if batch.is_static else "batch"])]

    def get_outputs(self):
        return [SimpleNamespace(name=value.any_name) for value in self.compiled.outputs]

    def run(self, outputs, feed):
        found = self.request.infer(list(feed.values()), share_inputs=True, share_outputs=True)
        self.calls += 1
        return [found[name] for name in outputs]

    def kernel_totals(self):
        """Return [(operator, kernel, microseconds of all calls so far)] in the order of the graph.

        OpenVINO gives the mean over all calls since the model was compiled, in whole microseconds.
        """
        return [
            (info.node_type, info.exec_type, self.calls * info.real_time.total_seconds() * 1e6)
            for info in self.request.get_profiling_info()
        ]


def open_file(path, *, threads):
    """Return what runs a file: OpenVINO for .xml, onnxruntime for .onnx."""
    return (OpenVinoSession if str(path).endswith(".xml") else open_session)(path, threads=threads)
