"""Compiled functions: tern.compile."""

import gc
import threading
import weakref

import numpy as np
import pytest

import tern
from tern import nn, train


def trained(compiles):
    """Losses and weights of a training with dropout, whose batches are of 8 rows and of 5."""
    tern.manual_seed(3)
    net = nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.Dropout(0.3), nn.Linear(16, 3))
    optimizer = train.AdamW(net.parameters(), lr=0.05)
    runs = []

    def step(x, y):
        runs.append(1)
        loss = tern.cross_entropy(net(x), y)
        train.update(loss, optimizer, max_norm=1.0)
        return loss

    called = tern.compile(step) if compiles else step
    losses = []
    for update in range(24):
        rows = 5 if update % 4 == 3 else 8
        optimizer.set_lr_factor(1 - update / 24)
        losses.append(called(tern.randn(rows, 4), tern.randint(0, 3, (rows,))).item())
        if update % 6 == 5:  # as a validation does
            net.eval()
            net.train()
    return losses, [p.detach().numpy().copy() for p in net.parameters()], called, len(runs)


def test_a_training_is_bitwise_the_one_as_written():
    losses, weights, _, _ = trained(False)
    same, same_weights, step, runs = trained(True)
    assert same == losses
    assert all(np.array_equal(a, b) for a, b in zip(weights, same_weights))
    # The first call of all, two of each kind, and the tenth of the one that has so many.
    assert (step.programs, step.runs, runs) == (2, 18, 6)
    report = step.report()
    assert report.startswith("2 programs\n") and "(f32 (8, 4), i64 (8,)): " in report and "(f32 (5, 4), i64 (5,)): " in report
    assert "LossForward" in step.show() or "cross_entropy" in step.show()
    assert "extern" in step.show("code") or step.show("code") == ""
    with pytest.raises(tern.Error, match="expected a stage, kernels, groups, memory or code, but got x"):
        step.show("x")
    step.forget()
    assert step.programs == 0


@pytest.mark.parametrize("shape", [(3,), (200, 200)])  # the second one is larger than what C++ copies
@pytest.mark.parametrize("f", [lambda x: x + 1, lambda x: (x + 1,), lambda x: [x + 1, x * 2], lambda x: (x, x - 1), lambda x: (), lambda x: [], lambda x: None])
def test_results_are_those_of_the_function_and_stay(f, shape):
    compiled = tern.compile(f)
    arguments = [tern.randn(shape) for _ in range(6)]
    results = [compiled(x) for x in arguments]
    assert compiled.runs == 3

    def numbers(result):
        if isinstance(result, (tuple, list)):
            return type(result), [y.tolist() for y in result]
        return None if result is None else result.tolist()

    assert [numbers(y) for y in results] == [numbers(f(x)) for x in arguments]


def test_a_module_runs_as_it_is_set():
    net = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))
    forward = tern.compile(net)
    x = tern.ones(40, 3)
    for training in (True, False, True, False):
        net.train(training)
        for _ in range(4):
            assert (forward(x) == 0).any().item() == training
    assert forward.programs == 2 and forward.runs == 11


@pytest.mark.parametrize("threaded", [False, True])
def test_a_module_is_a_part_of_a_step(threaded):
    def losses(compiles):
        tern.manual_seed(5)
        net = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Dropout(0.2), nn.Linear(9, 2))
        forward = tern.compile(net) if compiles else net
        optimizer = train.SGD(net.parameters(), lr=0.1)
        found = []
        for _ in range(14):
            x = tern.randn(5, 6).requires_grad_()
            loss = (forward(x) ** 2).mean()
            if threaded:
                other = threading.Thread(target=loss.backward)
                other.start()
                other.join()
            else:
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            found += [loss.item(), x.grad.abs().sum().item()]
        return found, forward

    found, forward = losses(True)
    assert found == losses(False)[0]
    assert forward.runs == 10 and " of the steps are its backward pass" in forward.report()
    with tern.no_grad():
        assert not forward(tern.randn(5, 6)).requires_grad


def test_what_a_program_could_not_do_again_is_named():
    factor = 2.0

    def scaled(x):
        return x * factor

    compiled = tern.compile(scaled)
    for _ in range(2):
        compiled(tern.ones(2))
    factor = 3.0
    with pytest.raises(tern.Error, match=r"^\[compile\] expected a function that does the same at each call but got, in kernel 1 of 1, .*numbers 2 and 3"):
        compiled(tern.ones(2))
    assert compiled(tern.ones(2)).tolist() == [3, 3]

    reads = tern.compile(lambda x: x * x.sum().item())
    reads(tern.ones(2))
    with pytest.raises(tern.Error, match=r"got item\(\): return the tensor, and read it outside"):
        reads(tern.ones(2))
    with pytest.raises(tern.Error, match=r"^\[compile\] expected tensors as arguments but got a float"):
        reads(2.0)
    for wrong, got in ((lambda x: 1.0, "float"), (lambda x: {"y": x}, "dict"), (lambda x: (x, None), "tuple")):
        with pytest.raises(tern.Error, match=rf"a tuple or list of them, or None, but got a {got}"):
            tern.compile(wrong)(tern.ones(1))


def test_an_exception_passes_and_the_next_call_is_well():
    w = tern.ones(3).requires_grad_()
    throws = False

    @tern.compile
    def step(x):
        y = (w * x).sum()
        if throws:
            raise KeyError("mine")
        y.backward()
        return y

    for call in range(8):
        throws = call in (1, 3)
        x = tern.full(3, call + 1.0)
        if throws:
            with pytest.raises(KeyError, match="mine"):
                step(x)
        else:
            assert step(x).item() == 3 * (call + 1)
    assert step.runs == 2
    assert w.grad.tolist() == [1 + 3 + 5 + 6 + 7 + 8.0] * 3


def test_threads_take_turns():
    compiled = tern.compile(lambda x: (x * 2, x + 1))
    faults = []

    def call(number):
        x = tern.full(5000, float(number))
        for _ in range(200):
            twice, more = compiled(x)
            if twice.max().item() != 2 * number or more.min().item() != number + 1:
                faults.append(number)

    threads = [threading.Thread(target=call, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == [] and compiled.runs > 700


def test_an_object_that_holds_its_compiled_method_is_collected():
    class Trained:
        def __init__(self):
            self.w = tern.ones(2)
            self.step = tern.compile(self.double)

        def double(self, x):
            return x * self.w * 2

    held = Trained()
    for _ in range(4):
        assert held.step(tern.ones(2)).tolist() == [2, 2]
    gone = weakref.ref(held)
    del held
    gc.collect()
    assert gone() is None
