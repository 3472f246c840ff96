# SPDX-License-Identifier: Apache-2.0
"""Graphs that are not all ours: nodes, bodies of If and Loop that stay with ONNX Runtime, values that decide shapes,
and runs that are ended before they are done."""

import os
import threading
import time

import numpy
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from inside import ALL, CLOSE, WORK, check, compare, counts, demo, difference, ids, raises, session

WIDTH = 16
FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def value(name, kind, *shape):
    return helper.make_tensor_value_info(name, kind, shape)


def model_of(nodes, inputs, outputs):
    """Bytes of a model with the weights w0 .. w3 [16, 16] and tall [768, 16], and the constant zero."""
    numbers = numpy.random.default_rng(1)
    weights = [numbers.standard_normal((WIDTH, WIDTH)).astype(numpy.float32) / 4 for _ in range(4)]
    tensors = [numpy_helper.from_array(array, "w%d" % i) for i, array in enumerate(weights)]
    tall = numbers.standard_normal((48 * WIDTH, WIDTH)).astype(numpy.float32) / 100
    tensors += [numpy_helper.from_array(tall, "tall"), numpy_helper.from_array(numpy.array(0, numpy.float32), "zero")]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model.SerializeToString()


def rows(n, seed=2, shift=0.0):
    return numpy.random.default_rng(seed).standard_normal((n, WIDTH)).astype(numpy.float32) + numpy.float32(shift)


def in_parts(what, content, feeds):
    """Whatever is ours, results are right: for every feed, with a trace as proof that some of it was."""
    plain = session(content)
    wanted = [plain.run(None, fed) for fed in feeds]
    for partition in ("whole", "auto"):
        path = os.path.join(WORK, what.replace(" ", "_") + ".json")
        ours = session(content, {"partition": partition, "trace": path}, whole=False)
        for _ in range(2):
            for fed, right in zip(feeds, wanted):
                compare("%s, %s" % (what, partition), ours.run(None, fed), right, CLOSE)
        del ours
        check(os.path.exists(path) == (partition == "auto"), what, partition, "is ours in part:", os.path.exists(path))


# ---- nodes and bodies that stay ----

HEAD = [
    helper.make_node("MatMul", ["x", "w0"], ["a"]),
    helper.make_node("Relu", ["a"], ["b"]),
    helper.make_node("MatMul", ["b", "w1"], ["c"]),
    helper.make_node("Tanh", ["c"], ["d"]),
    helper.make_node("Unique", ["d"], ["e", "", "f", ""], sorted=1, axis=0),
    helper.make_node("MatMul", ["e", "w2"], ["g"]),
    helper.make_node("Relu", ["g"], ["h"]),
    helper.make_node("MatMul", ["h", "w3"], ["i"]),
    helper.make_node("Add", ["i", "h"], ["j"]),
]
X, Y = [value("x", FLOAT, "n", WIDTH)], [value("y", FLOAT, "n", WIDTH)]


def test_node():
    """A node that we do not have, between two sets that are ours."""
    tail = [helper.make_node("Gather", ["j", "f"], ["k"]), helper.make_node("Add", ["k", "d"], ["y"])]
    in_parts("a node", model_of(HEAD + tail, X, Y), [{"x": rows(5)}, {"x": rows(3)}])


def test_dimensions_without_names():
    """No default fits what comes in, 48 x 16 numbers: the set's plan is made at the first run."""
    nodes = [
        *HEAD[:4],
        helper.make_node("Unique", ["d"], ["e"], sorted=1),
        helper.make_node("MatMul", ["e", "tall"], ["g"]),
        helper.make_node("Relu", ["g"], ["h"]),
        helper.make_node("Tanh", ["h"], ["i"]),
        helper.make_node("Add", ["i", "d"], ["y"]),
    ]
    in_parts("unnamed", model_of(nodes, X, Y), [{"x": rows(48)}])


def branch(op):
    """A body that reads values of the graph around it."""
    return helper.make_graph([helper.make_node(op, ["j", "d"], [op])], op, [], [value(op, FLOAT, "n", WIDTH)])


def test_if():
    """Its condition is data. It reads j and d only inside, and what comes behind it must not be of one set with j."""
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Greater", ["sum", "zero"], ["positive"]),
        *HEAD,
        helper.make_node("If", ["positive"], ["k"], then_branch=branch("Add"), else_branch=branch("Sub")),
        helper.make_node("MatMul", ["k", "w0"], ["l"]),
        helper.make_node("Relu", ["l"], ["m"]),
        helper.make_node("Tanh", ["m"], ["n"]),
        helper.make_node("Add", ["n", "e"], ["y"]),
    ]
    in_parts("if", model_of(nodes, X, Y), [{"x": rows(5, shift=1)}, {"x": rows(5, shift=-1)}, {"x": rows(2, shift=1)}])


def rounds():
    """The body of a loop: v, once more, with weights and a value of the graph around it."""
    return helper.make_graph(
        [
            helper.make_node("MatMul", ["v", "w1"], ["v1"]),
            helper.make_node("Add", ["v1", "d"], ["v2"]),
            helper.make_node("Tanh", ["v2"], ["v_out"]),
            helper.make_node("Identity", ["go"], ["go_out"]),
        ],
        "body",
        [value("round", INT64), value("go", BOOL), value("v", FLOAT, "n", WIDTH)],
        [value("go_out", BOOL), value("v_out", FLOAT, "n", WIDTH)],
    )


def looped():
    """x, then as many rounds as the largest number of x says, then more of ours."""
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
        helper.make_node("Cast", ["most"], ["rounds"], to=INT64),
        *HEAD[:4],
        helper.make_node("Loop", ["rounds", "", "d"], ["r"], body=rounds()),
        helper.make_node("MatMul", ["r", "w2"], ["s"]),
        helper.make_node("Relu", ["s"], ["t"]),
        helper.make_node("Add", ["t", "d"], ["u"]),
        helper.make_node("Tanh", ["u"], ["y"]),
    ]
    return model_of(nodes, X, Y)


def with_rounds(n):
    x = rows(4)
    x[0, 0] = n
    return {"x": x}


def test_loop():
    in_parts("loop", looped(), [with_rounds(3), with_rounds(7), with_rounds(5)])


def test_bodies_that_an_input_decides():
    """Both values come and go: the graph is not taken as a whole for the first one's branch or number of rounds."""
    tail = [helper.make_node("MatMul", ["k", "w3"], ["l"]), helper.make_node("Tanh", ["l"], ["y"])]
    nodes = [
        *HEAD[:4],
        helper.make_node("MatMul", ["d", "w2"], ["j"]),
        helper.make_node("If", ["use"], ["k"], then_branch=branch("Add"), else_branch=branch("Sub")),
        *tail,
    ]
    feeds = [{"x": rows(3), "use": numpy.array(use)} for use in (True, False, True)]
    in_parts("if of an input", model_of(nodes, X + [value("use", BOOL)], Y), feeds)
    nodes = [*HEAD[:4], helper.make_node("Loop", ["rounds", "", "d"], ["k"], body=rounds()), *tail]
    feeds = [{"x": rows(3), "rounds": numpy.array(n, numpy.int64)} for n in (3, 7, 3)]
    in_parts("loop of an input", model_of(nodes, X + [value("rounds", INT64)], Y), feeds)


def test_values_that_decide_shapes():
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["z"]), helper.make_node("Neg", ["z"], ["y"])]
    content = model_of(nodes, [value("x", FLOAT, "n", "m"), value("shape", INT64, 2)], [value("y", FLOAT, "a", "b")])
    ours = session(content, {})
    x = numpy.arange(6, dtype=numpy.float32).reshape(2, 3)
    for shape in ((3, 2), (6, 1), (3, 2), (1, 6)):
        found = ours.run(None, {"x": x, "shape": numpy.array(shape, numpy.int64)})[0]
        check(found.shape == shape and numpy.array_equal(found, -x.reshape(shape)), "shaped", shape, found)


# ---- runs that are ended ----


def test_cancel():
    """Ended while the loop that stays with ONNX Runtime goes round, with stages of ours before and behind it."""
    content = looped()
    ours, plain = session(content, {"partition": "auto"}, whole=False), session(content)
    for _ in range(3):
        stop = onnxruntime.RunOptions()
        timer = threading.Timer(0.1, lambda: setattr(stop, "terminate", True))
        started = time.time()
        timer.start()
        raises("a run that is ended", "terminate", lambda: ours.run(None, with_rounds(2.0**40), stop))
        check(time.time() - started < 30, "a run that is ended took", time.time() - started)
        timer.join()
        compare("after one", ours.run(None, with_rounds(3)), plain.run(None, with_rounds(3)), CLOSE)


def test_threads():
    """Eight threads of mixed shapes; one run in five is to end, before it has begun or at some time."""
    shapes = [(1, 4), (2, 8), (1, 17), (3, 5), (1, 1), (2, 12)]
    plain = session(demo())
    wanted = {shape: plain.run(None, ids(*shape)) for shape in shapes}
    ours = session(demo(), {"stages": 2, "threads": 1, "shapes": 8})
    n = 200 if ALL else 20
    bad, ended, done = [], [], []

    def call(first):
        for i in range(n):
            shape = shapes[(first + i) % len(shapes)]
            stop = onnxruntime.RunOptions()
            timer = threading.Timer(0.0005 * (i % 4), lambda s=stop: setattr(s, "terminate", True))
            if i % 5 == 4:
                stop.terminate = i % 2 == 0
                timer.start()
            try:
                found = ours.run(None, ids(*shape), stop)[0]
                if i % 10 == 4 or difference(found, wanted[shape][0]) > CLOSE:
                    bad.append(shape)
                done.append(1)
            except Exception as error:
                (ended if i % 5 == 4 and "terminate" in str(error) else bad).append(str(error))
            timer.cancel()

    threads = [threading.Thread(target=call, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check(not bad, "threads:", bad[:3])
    check(len(ended) >= 8 * n // 10, "threads: ended were", len(ended))
    check(len(done) + len(ended) + len(bad) == 8 * n, "threads:", len(done), len(ended), len(bad))
    counts["runs"] += len(done)
    compare("after all", ours.run(None, ids(2, 8)), wanted[(2, 8)], CLOSE)


TESTS = (
    test_node,
    test_dimensions_without_names,
    test_if,
    test_loop,
    test_bodies_that_an_input_decides,
    test_values_that_decide_shapes,
    test_cancel,
    test_threads,
)
