"""The parameters of each calibration method, and the settings that a recipe ends up with.

Imports nothing: the parameter check, which runs at every `dvc repro`, uses it as the calibration does.
"""

# The words are onnxruntime's create_calibrator's, and so are the defaults, with one exception: its 128 bins for Entropy
# leave a single candidate threshold, the largest value, and the result is MinMax's, byte for byte.
METHODS = {
    "MinMax": {"symmetric": False, "moving_average": False, "averaging_constant": 0.01},
    "Entropy": {"num_bins": 2048, "num_quantized_bins": 128},
    "Percentile": {"num_bins": 2048, "percentile": 99.999, "symmetric": True},
}


def calibration_settings(shared, own):
    """Return (draw, how): which images a variant is calibrated on, {seed, images}, and how, {batch_size, method, ...}.

    Every setting is the recipe's `own`, else the `shared` one, else the method's default. A parameter that the variant's
    method does not use is left behind, so that a recipe can take another method than the one that `calibrate` is set for.
    """
    settings = {**shared, **own}
    method = settings["method"]
    parameters = {key: settings.get(key, default) for key, default in METHODS[method].items()}
    if not parameters.get("moving_average", True):
        del parameters["averaging_constant"]
    draw = {key: settings[key] for key in ("seed", "images")}
    return draw, {"batch_size": settings["batch_size"], "method": method, **parameters}
