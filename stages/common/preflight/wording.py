"""What is said of a parameter that is wrong: the key, what it is, and what to write."""

import difflib
from typing import Any

NAME = "write a name of a-z, 0-9 and inner hyphens, in quotes if it looks like a number"
# What to write, by pydantic's name of the error.
EXPECTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text, in quotes if it looks like a number",
    "list_type": "a list in brackets, [] if it holds nothing",
    "filled_list_type": "a list in brackets, of at least one",
    "dict_type": "a mapping, {} if it holds nothing",
    "model_type": "its parameters below it, each on a line",
}
LIMITS = {
    "greater_than": "greater than {gt:.12g}",
    "greater_than_equal": "at least {ge:.12g}",
    "less_than": "less than {lt:.12g}",
    "less_than_equal": "at most {le:.12g}",
}


def nearest(word, words, prefix=""):
    """Return how to go on after an unknown word: the nearest known one, with `prefix` before it, or all of them."""
    words = list(words)
    if not words:
        return "there is none to name"
    match = difflib.get_close_matches(str(word), words, n=1, cutoff=0.6)
    return f"did you mean `{prefix}{match[0]}`?" if match else f"expected one of {', '.join(words)}"


def sentence(problem: dict[str, Any]):
    """Return pydantic's problem in the words of params.yaml: the key, what it is, and what to write."""
    kind, value, context = problem["type"], problem["input"], problem.get("ctx", {})
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in problem["loc"]).lstrip(".")
    if not where and kind == "model_type":
        return "the file is not a mapping of parameters: write `key: value` lines"
    if kind == "unknown_key":
        prefix = f"{where}." if where else ""
        return f"`{prefix}{context['key']}` is not a parameter: {nearest(context['key'], context['known'], prefix)}"
    if where.endswith(".[key]"):
        return f"`{value}` under `{problem['loc'][0]}` cannot be a name: {NAME}"
    if kind == "missing":
        return f"`{where}` is missing: add it"
    if kind in ("list_type", "filled_list_type") and isinstance(value, str | int | float):
        return f"`{where}` is {value!r}: write a list, [{value}]"
    if kind in EXPECTED:
        return f"`{where}` is {'blank' if value is None else repr(value)}: write {EXPECTED[kind]}"
    if kind in LIMITS:
        return f"`{where}` is {value!r}: it must be {LIMITS[kind].format(**context)}"
    if kind == "too_short":
        return f"`{where}` is empty: it needs at least {context['min_length']}"
    message = problem["msg"].removeprefix("Value error, ")
    return f"`{where}`: {message}" if where else message
