"""Names in params.yaml that have to agree: variants and recipes, and the models that sections are about."""

from stages.common.preflight.wording import nearest

RESERVED_NAMES = {"fp32": "the baseline", "fp32-again": "the benchmark's control", "tuned": "what `tune` finds"}
SEARCHED_PREFIX = "searched-"  # of the names that `tune` gives to what it tries
TUNED = "tuned"


def variants_against_recipes(params):
    """Yield what is in `variants` without a recipe, is a recipe that is not in it, or has a name of something else."""
    dynamic, static, listed = params["quantize_dynamic"], params["calibrate_quantize"], params["variants"]
    for name in [*dynamic, *static]:
        if name in RESERVED_NAMES:
            yield f"a recipe is named `{name}`, which is the name of {RESERVED_NAMES[name]}: rename it"
        if name.startswith(SEARCHED_PREFIX):
            yield f"a recipe is named `{name}`: names that begin with `{SEARCHED_PREFIX}` are those of what `tune` tries: rename it"
        if name not in listed:
            yield f"the recipe `{name}` is not in `variants`: add it there, or remove the recipe"
    for name in sorted(set(dynamic) & set(static)):
        yield f"`{name}` is a recipe under both quantize_dynamic and calibrate_quantize: rename one"
    for name in sorted(set(listed)):
        if listed.count(name) > 1:
            yield f"`variants` names `{name}` {listed.count(name)} times: once is enough"
        if name not in dynamic and name not in static and name != TUNED:
            yield f"`variants` names `{name}`, which has no recipe: {nearest(name, [*dynamic, *static])}"


def colliding_names(params):
    """DVC joins matrix names with a hyphen: (`a`, `b-c`) and (`a-b`, `c`) would be one stage."""
    seen = {}
    for model in params["models"]:
        for variant in dict.fromkeys(params["variants"]):
            stage = f"{model}-{variant}"
            if stage in seen:
                other = seen[stage]
                yield f"model `{model}` with variant `{variant}` and model `{other[0]}` with variant `{other[1]}` are both called {stage}: rename one"
            seen[stage] = (model, variant)


def unknown_models(params, section):
    """Yield the models that a section is about and that are not in `models`."""
    for name in params[section]:
        if name not in params["models"]:
            yield f"`{section}` names the model `{name}`, which is not in `models`: {nearest(name, params['models'])}"


def tune(params):
    """Yield how `tune` and its variant disagree: `tuned` is one like any other, and every variant is made of all models."""
    yield from unknown_models(params, "tune")
    missing = [name for name in params["models"] if name not in params["tune"]]
    if params["tune"] and missing:
        yield f"`tune` lacks the model `{missing[0]}`: add it, since every variant is made of all models, or write `tune: {{}}`"
    if params["tune"] and TUNED not in params["variants"]:
        yield "`tune` makes the variant `tuned`, which is not in `variants`: add it there, or write `tune: {}`"
    if not params["tune"] and TUNED in params["variants"]:
        yield "`variants` names `tuned`, and `tune` is empty: put the models under `tune`, or take it out of `variants`"


def explained(params):
    """Yield whether the variant that is taken apart layer by layer is no static recipe."""
    name, recipes = params["explain"]["layers_of"], params["calibrate_quantize"]
    if name == TUNED:
        yield "`explain.layers_of` is `tuned`, which is another recipe for every model: name one of `calibrate_quantize`, where it can be pasted if it fits them all"
    elif name not in recipes:
        yield f"`explain.layers_of` is `{name}`, which is no static recipe: {nearest(name, recipes)}"


def sensitivity(params):
    """Yield plans for models or recipes that are not there, and for more predictions than the baseline has."""
    yield from unknown_models(params, "sensitivity")
    for name, plan in params["sensitivity"].items():
        if name in params["models"] and plan["test_images"] > params["models"][name]["evaluate"]["images"]:
            yield f"`sensitivity.{name}.test_images` is {plan['test_images']}, and the baseline predicts {params['models'][name]['evaluate']['images']} (`models.{name}.evaluate.images`): ask for fewer"
        if plan["variant"] not in params["calibrate_quantize"]:
            yield f"`sensitivity.{name}.variant` is `{plan['variant']}`, which is no recipe of `calibrate_quantize`: {nearest(plan['variant'], params['calibrate_quantize'])}"
