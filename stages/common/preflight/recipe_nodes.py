"""Nodes that recipes name, looked for in models of the user's own before anything long.

A recipe names nodes of the preprocessed file, in which some of fp32's are fused, folded, or named for the first time. A
recipe is made of every model, so every model has to have them, but for the one that `tune` is given for a model. In
models that are trained here calibrate-quantize and tune look.
"""

import tempfile

from stages.common.workspace import UserError

KEYS = ("nodes_to_exclude", "swap_relu_maxpool")
GIVEN = "tune."  # what the key of a recipe for one model begins with


def recipes_with_nodes(params, plans, model):
    """Return {key: recipe} of a model's recipes that name nodes; what the parameter check refuses is passed over.

    `plans`: the section `tune`, or nothing of it.
    """
    recipes = {f"{GIVEN}{model}.recipe": plans.get(model, {}).get("recipe")}
    for section in ("quantize_dynamic", "calibrate_quantize"):
        if isinstance(params.get(section), dict):
            recipes |= {f"{section}.{name}": recipe for name, recipe in params[section].items()}
    return {key: recipe for key, recipe in recipes.items() if _names_nodes(recipe)}


def _names_nodes(recipe):
    lists = [recipe.get(key, []) for key in KEYS] if isinstance(recipe, dict) else []
    return any(lists) and all(_are_names(names) for names in lists)


def _are_names(value):
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def node_mistakes(fp32, preprocessed, where, recipes, *, alone):
    """Yield what `recipes`, a dictionary, name that the model file at `fp32` does not have once it is preprocessed.

    `preprocessed`: where an earlier run left that file, if one did. It may be an older model's: what is not in it is
    looked for in a new one. `alone`: whether there is no other model.
    """
    if preprocessed.is_file() and not list(_not_found(preprocessed, recipes)):
        return
    from stages.common.preprocessing import preprocess  # noqa: PLC0415 -- a second, unless recipes name nodes

    with tempfile.TemporaryDirectory() as folder:
        try:
            preprocess(fp32, f"{folder}/preprocessed.onnx")
        except UserError as error:
            yield str(error).removesuffix(".")
            return
        for key, message in _not_found(f"{folder}/preprocessed.onnx", recipes):
            why = (
                "cannot be"
                if alone or key.startswith(GIVEN)
                else "is made of all models, as every recipe, and cannot be"
            )
            yield f"`{key}` {why} made of {where}: {message}"


def _not_found(preprocessed, recipes):
    """Yield (key of a recipe, what is wrong) for every node that a preprocessed file does not have, or not so."""
    import onnx  # noqa: PLC0415 -- as above

    from stages.common.calibration.graph_rewrites import swap_pools, swappable_pools  # noqa: PLC0415
    from stages.common.quantization import check_excluded_nodes  # noqa: PLC0415

    model = onnx.load(preprocessed)
    swappable = swappable_pools(model)
    for key, recipe in recipes.items():
        pools = [name for name in recipe.get("swap_relu_maxpool", []) if name not in swappable]
        checks = [(check_excluded_nodes, {"nodes_to_exclude": [name]}) for name in recipe.get("nodes_to_exclude", [])]
        for check, nodes in [*checks, *((swap_pools, [name]) for name in pools)]:
            try:
                check(model, nodes)
            except UserError as error:
                yield key, str(error).removesuffix(".")
