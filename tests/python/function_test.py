"""Ops with a gradient of one's own: tern.Function."""

import gc
import os
import pathlib
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest

import tern
from tern import nn


class Cube(tern.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 3 * x * x * grad


class Exp(tern.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0]


class ScaledSum(tern.Function):
    """Two outputs; arguments that are no tensors, and an attribute of the context."""

    @staticmethod
    def forward(ctx, a, scale, b, *, shift=0.0):
        ctx.scale = scale
        return (a + b) * scale + shift, a - b

    @staticmethod
    def backward(ctx, total, difference):
        return total * ctx.scale + difference, None, total * ctx.scale - difference


def doubles(*shape):
    return tern.rand(*shape, dtype=tern.f64).add_(0.5).requires_grad_()


@pytest.mark.parametrize("f, count", [(Cube.apply, 1), (Exp.apply, 1), (lambda a, b: ScaledSum.apply(a, 2.5, b), 2)])
def test_gradients_of_both_orders_agree_with_differences(f, count):
    inputs = [doubles(2, 3) for _ in range(count)]
    assert tern.gradcheck(f, inputs) and tern.gradgradcheck(f, inputs)
    outputs, products = tern.jvp(f, inputs, [tern.ones_like(x) for x in inputs])
    assert len(outputs) == len(products) == count and all(p.shape == (2, 3) for p in products)


def test_gradcheck_notices_a_wrong_gradient():
    class Wrong(Cube):
        @staticmethod
        def backward(ctx, grad):
            return 2 * grad

    with pytest.raises(tern.Error, match=r"\[gradcheck\] expected gradients that agree with differences"):
        tern.gradcheck(Wrong.apply, doubles(2))


def test_gradients_reach_leaves_and_other_outputs_are_zeros():
    a, b = tern.tensor([1.0, 2.0], requires_grad=True), tern.tensor([3.0, 4.0], requires_grad=True)
    total, difference = ScaledSum.apply(a, 10.0, b)
    assert total.tolist() == [40, 60] and difference.tolist() == [-2, -2] and total.requires_grad
    difference.sum().backward()
    assert a.grad.tolist() == [1, 1] and b.grad.tolist() == [-1, -1]
    with tern.no_grad():
        assert not Cube.apply(a).requires_grad
    assert not Cube.apply(tern.ones(2)).requires_grad


def test_the_context_knows_which_gradients_are_needed():
    seen = []

    class Mul(tern.Function):
        @staticmethod
        def forward(ctx, a, b, c):
            seen.append(ctx.needs_input_grad)
            ctx.save_for_backward(a, None, b)
            return a * b

        @staticmethod
        def backward(ctx, grad):
            seen.append(ctx.needs_input_grad)
            a, nothing, b = ctx.saved_tensors
            assert nothing is None
            return grad * b, grad * a, None

    a = tern.ones(2).requires_grad_()
    Mul.apply(a, tern.ones(2), 3).sum().backward()
    assert seen == [(True, False, False)] * 2 and a.grad.tolist() == [1, 1]


def test_exceptions_pass_through_with_their_type():
    class Fails(Cube):
        @staticmethod
        def backward(ctx, grad):
            raise KeyError("mine")

    class Interrupted(Cube):
        @staticmethod
        def backward(ctx, grad):
            raise KeyboardInterrupt

    x = tern.ones(2).requires_grad_()
    y = Fails.apply(x).sum()
    with pytest.raises(KeyError, match="mine"):
        y.backward()
    with pytest.raises(KeyboardInterrupt):
        (Interrupted.apply(x) * 2).sum().backward()
    with pytest.raises(NotImplementedError, match="backward"):
        type("Half", (tern.Function,), {"forward": staticmethod(lambda ctx, x: x * 1)}).apply(x).sum().backward()
    assert Cube.apply(x).sum().item() == 2  # the thread's state is as before


def test_mistakes_are_one_line_that_names_the_function():
    def backward_of(result):
        return type("Mine", (Cube,), {"backward": staticmethod(lambda ctx, grad: result(grad))})

    x = tern.ones(2).requires_grad_()
    for result, message in (
        (lambda g: (g, g), r"^\[Mine\] expected backward to return 1 gradients, one for each argument of forward, but got 2$"),
        (lambda g: "text", r"^\[Mine\] expected backward to return tensors, or None, but got a str$"),
        (lambda g: tern.ones(3), r"^\[Mine\] .*\(2,\).*\(3,\)"),
    ):
        with pytest.raises(tern.Error, match=message):
            backward_of(result).apply(x).sum().backward()
    with pytest.raises(tern.Error, match=r"^\[Text\] expected a function that returns a tensor, or several, but got a str"):
        type("Text", (tern.Function,), {"forward": staticmethod(lambda ctx, x: "text")}).apply(x)
    x.grad = None
    backward_of(lambda g: None).apply(x).sum().backward()
    assert x.grad is None
    w = tern.ones(2)

    class KeepsW(Cube):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(w)
            return x * w

    y = KeepsW.apply(x).sum()
    w += 1
    with pytest.raises(tern.Error, match="in place"):
        y.backward()


def test_a_gradient_by_numpy_is_once_differentiable():
    class Sine(tern.Function):
        once_differentiable = True

        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return tern.from_numpy(np.sin(x.detach().numpy()))

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return tern.from_numpy(np.cos(x.detach().numpy())) * grad

    x = doubles(3)
    assert tern.gradcheck(Sine.apply, x)
    (first,) = tern.grad(Sine.apply(x).sum(), x, create_graph=True)
    with pytest.raises(tern.Error, match=r"\[Sine\] .*once differentiable"):
        first.sum().backward()


def test_forward_may_return_its_argument():
    class Same(tern.Function):
        @staticmethod
        def forward(ctx, x):
            return x

        @staticmethod
        def backward(ctx, grad):
            return -grad

    x = tern.ones(2).requires_grad_()
    y = Same.apply(x)
    assert not y.is_same(x) and x.is_leaf
    y.sum().backward()
    assert x.grad.tolist() == [-1, -1]


def test_graphs_are_freed():
    alive = []

    class Marked:
        pass

    class KeepsItsOutput(tern.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.mark = Marked()
            alive.append(weakref.ref(ctx.mark))
            ctx.output = x * 2  # a cycle, if the output had its history here
            ctx.save_for_backward(x, ctx.output)
            return ctx.output

        @staticmethod
        def backward(ctx, grad):
            ctx.seen = ctx.saved_tensors[0].shape
            return grad * 2

    x = tern.ones(2).requires_grad_()
    for i in range(6):
        y = KeepsItsOutput.apply(x).sum()
        if i % 3 == 1:
            y.backward()
        if i % 3 == 2:
            tern.grad(y, x, create_graph=True)
    del y
    gc.collect()
    assert [ref() for ref in alive] == [None] * 6


def test_a_program_may_end_with_a_graph():
    program = """
import tern
class Double(tern.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2
    @staticmethod
    def backward(ctx, grad):
        return grad * 2
x = tern.ones(3).requires_grad_()
kept = Double.apply(Double.apply(x))
kept.sum().backward(retain_graph=True)
print(x.grad.tolist())
"""
    place = str(pathlib.Path(tern.__file__).parents[1])
    run = subprocess.run([sys.executable, "-c", program], env=os.environ | {"PYTHONPATH": place}, capture_output=True, text=True)
    assert (run.returncode, run.stdout, run.stderr) == (0, "[4.0, 4.0, 4.0]\n", "")


def test_threads_run_a_function_of_ones_own():
    x = [tern.ones(64).requires_grad_() for _ in range(4)]

    def work(leaf):
        for _ in range(50):
            Cube.apply(leaf).sum().backward()

    threads = [threading.Thread(target=work, args=(leaf,)) for leaf in x]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(leaf.grad.tolist() == [150] * 64 for leaf in x)


def test_a_module_with_an_op_of_ones_own():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(3, 3)

        def forward(self, x):
            return Cube.apply(self.fc(x))

    net = Net()
    net(tern.ones(2, 3)).sum().backward()
    assert all(p.grad is not None for p in net.parameters())
    with pytest.raises(RuntimeError, match="while backward runs"):
        tern.Context.saved_tensors.fget(type("C", (tern.Context,), {"_saved": None})())
