"""The value of a parameter that params.yaml may leave out: what the pipeline then takes."""

from typing import get_args, get_origin

from stages.common.calibration.settings import calibration_settings
from stages.common.preflight.sections import Params

ABSENT = "-"  # has no value: the section is not there, or a method does not use it


def value_of(parameters, key):
    """Return the value of a dotted key in {dotted key: value}, else its default, else `ABSENT`."""
    if key in parameters:
        return parameters[key]
    field = field_of(parameters, key)
    if field is None:
        return ABSENT
    section, _, name = key.rpartition(".")
    if section.rpartition(".")[2] == "calibrate":
        return calibration_value(parameters, section, name)
    return ABSENT if field.is_required() or field.default is None else field.default


def field_of(parameters, key):
    """Return the field of a dotted key as the parameter check has it, or None where its section is not there."""
    kind, field, walked = Params, None, []
    for part in key.split("."):
        if (
            walked
            and is_open(kind, field)
            and not any(known.startswith(f"{'.'.join(walked)}.") for known in parameters)
        ):
            return None
        walked.append(part)
        if get_origin(kind) is dict:  # of sections by name
            kind, field = get_args(kind)[1], None
        elif part in getattr(kind, "model_fields", {}):
            field = kind.model_fields[part]
            kind = field.annotation
        else:
            return None
    return field


def is_open(kind, field):
    """Return whether a section may be missing as a whole: one of a name, or one without a default."""
    return get_origin(kind) is not dict and (field is None or field.default is None)


def calibration_value(parameters, section, name):
    """Return a setting of `calibrate`, or of a recipe's own, whose absent keys are those of the shared one."""
    shared, own = (
        {key.removeprefix(f"{of}."): value for key, value in parameters.items() if key.rpartition(".")[0] == of}
        for of in ("calibrate", section)
    )
    try:
        draw, how = calibration_settings(shared, own)
    except KeyError:  # a parameter file that the check does not let through
        return ABSENT
    return (draw | how).get(name, ABSENT)
