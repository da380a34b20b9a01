"""Which node of a saved optimized graph a node of a trace is: a graph with branches can be run in many orders.

onnxruntime inserts its layout conversions in an order that changes from session to session, many of them under one
name. What such a node can be is decided by what has run before it: its inputs have to be there.
"""

import re


def places_in_trace(ran, graph):
    """Return for every node of `graph`, in its order, the place in `ran` at which it was run.

    `ran`: [(operator type, name)] in the order of time; `graph`: the optimized GraphProto that another session saved.
    Raises RuntimeError if the graph cannot be run in such an order.
    """
    ran, saved = [(op_type, _stem(name)) for op_type, name in ran], _by_label(graph.node)
    made = {"", *(value.name for value in (*graph.input, *graph.initializer))}
    places, trail = {}, []  # {node: place in ran}; of every step so far (node, the choices that are left)
    while len(places) < len(ran):
        label = ran[len(places)]
        fitting = [*saved.get(label, []), *saved.get((label[0], ""), [])] if label[1] else saved.get(label, [])
        choices = iter([node for node in fitting if node not in places and made.issuperset(graph.node[node].input)])
        while (node := next(choices, None)) is None:  # a dead end: an earlier choice between equal names was wrong
            if not trail:
                raise _another_graph(ran, graph)
            last, choices = trail.pop()
            del places[last]
            made -= set(graph.node[last].output)
        places[node] = len(places)
        made |= set(graph.node[node].output)
        trail.append((node, choices))
    if len(places) != len(graph.node):
        raise _another_graph(ran, graph)
    return [places[node] for node in range(len(graph.node))]


def _by_label(nodes):
    """Return {(operator type, name): [places in `nodes`]}; onnxruntime may save a node that it named without its name."""
    found = {}
    for place, node in enumerate(nodes):
        found.setdefault((node.op_type, _stem(node.name)), []).append(place)
    return found


def _stem(name):
    """Return a name without the numbers that onnxruntime hangs on to make it unique, anew in every session."""
    return re.sub(r"_token_\d+", "", name)


def _another_graph(ran, graph):
    return RuntimeError(
        f"the trace has nodes {ran}, the optimized graph {[(node.op_type, node.name) for node in graph.node]}"
    )
