"""Training: README's program with README's figures, optimizers beside their formulas, schedules, checkpoints."""

import math

import numpy as np
import pytest

import tern
from tern import io, nn, train


def test_the_program_of_the_readme_prints_the_losses_of_the_readme():
    tern.manual_seed(1)
    x = tern.randn((256, 2))
    inside = tern.cast(tern.sum(tern.square(x), 1) < 1.4, tern.i64)
    net = nn.Sequential(nn.Linear(2, 64), nn.GELU(), nn.Linear(64, 2))
    optimizer = train.AdamW(net.parameters(), lr=0.01)
    losses = []
    for step in range(1, 201):
        loss = tern.cross_entropy(net(x), inside)
        train.update(loss, optimizer)
        if step % 50 == 0:
            losses.append(f"{loss.item():.3f}")
    assert losses == ["0.092", "0.046", "0.031", "0.021"]


def parameter():
    return tern.tensor([1.0, -2.0, 3.0], dtype=tern.f64, requires_grad=True)


def test_steps_follow_the_formulas():
    g = np.array([0.5, -1.0, 2.0])
    start = np.array([1.0, -2.0, 3.0])
    lr, decay = 0.1, 0.2
    bias_free = g / (np.abs(g) + 1e-8)  # the first step of Adam, whose corrected moments are g and g^2
    expected = {
        "sgd": start - lr * (g + decay * start),
        "adamw": start - lr * decay * start - lr * bias_free,
        "lion": start - lr * (np.sign(g) + decay * start),
    }
    made = {
        "sgd": lambda p: train.SGD([p], lr=lr, weight_decay=decay, momentum=0.9),
        "adamw": lambda p: train.AdamW([p], lr=lr, weight_decay=decay),
        "lion": lambda p: train.Lion([p], lr=lr, weight_decay=decay),
    }
    for name, make in made.items():
        p = parameter()
        optimizer = make(p)
        p.grad = tern.from_numpy(g)
        optimizer.step()
        np.testing.assert_allclose(p.detach().numpy(), expected[name], rtol=1e-6)
        assert optimizer.steps().item() == 1
        optimizer.zero_grad()
        assert p.grad is None


def test_adam_adds_its_decay_to_the_gradient():
    p, q = parameter(), parameter()
    for x, optimizer in ((p, train.Adam([p], weight_decay=0.5)), (q, train.Adam([q]))):
        x.grad = tern.tensor([1.0, 1.0, 1.0], dtype=tern.f64)
        optimizer.step()
    assert p[1].item() == -2 and q[1].item() == pytest.approx(-2.001)  # -2 * 0.5 + 1 = 0: no step
    with pytest.raises(TypeError):
        train.AdamW([p], 0.1)  # options have names


def test_muon_makes_a_matrix_orthogonal_and_others_are_adams():
    w = tern.zeros((4, 4)).requires_grad_()
    b = tern.zeros(4).requires_grad_()
    optimizer = train.Muon([w], [b], lr=1, dtype=tern.f32, adam_lr=0.5, adam_weight_decay=0)
    tern.manual_seed(1)
    w.grad, b.grad = tern.randn((4, 4)), tern.ones(4)
    optimizer.step()
    singular = tern.svd(w.detach())[1].numpy()
    assert 0.5 < singular.min() and singular.max() < 1.4
    assert b.detach().tolist() == pytest.approx([-0.5] * 4, rel=1e-5)


def test_update_clips_and_says_the_norm():
    p = parameter()
    loss = (p * tern.tensor([3.0, 0.0, 4.0], dtype=tern.f64)).sum()
    norm = train.update(loss, train.SGD([p], lr=1), max_norm=1)
    assert norm.item() == pytest.approx(5)
    np.testing.assert_allclose(p.detach().numpy(), [1 - 0.6, -2, 3 - 0.8], rtol=1e-5)
    assert train.update((p * p).sum(), train.SGD([p], lr=0)) is None
    with pytest.raises(tern.Error, match="max_norm"):
        train.update((p * p).sum(), train.SGD([p]), max_norm=0)


def test_accumulated_parts_are_the_whole():
    x = tern.randn((8, 3))
    net, same = nn.Linear(3, 1), nn.Linear(3, 1)
    for a, b in zip(same.parameters(), net.parameters()):
        with tern.no_grad():
            tern.copy_(a, b.detach())
    train.update(tern.square(net(x)).mean(), train.SGD(net.parameters(), lr=0.1))
    optimizer = train.SGD(same.parameters(), lr=0.1)
    optimizer.zero_grad()
    for part in tern.chunk(x, 2):
        train.accumulate(tern.square(same(part)).mean() / 2)
    train.apply(optimizer)
    assert tern.allclose(net.weight, same.weight, absolute=1e-6)


def test_groups_schedules_and_rates():
    a, b = parameter(), parameter()
    optimizer = train.SGD([a], lr=1.0)
    optimizer.add_group([b], lr=0.5)
    optimizer.set_lr_factor(train.schedule.linear_warmup(1, 4))
    assert optimizer.lr().item() == 0.25 and optimizer.lr(1).item() == 0.125 and len(optimizer.parameters()) == 2
    optimizer.set_lr(2)
    assert optimizer.lr(1).item() == 2
    schedule = train.schedule
    assert schedule.cosine(55, 10, 100) == pytest.approx(0.5 * (1 + math.cos(math.pi / 2)))
    assert schedule.inverse_sqrt(400, warmup=100) == 0.5 and schedule.constant(3) == 1
    assert schedule.linear(55, 10, 100, floor=0.1) == pytest.approx(0.55) and schedule.wsd(95, 10, 100, 10) == 0.5
    assert schedule.one_cycle(0, 10, 100) == pytest.approx(1 / 25)


def trained(net, optimizer, steps):
    x = tern.ones((4, 3))
    for _ in range(steps):
        train.update(tern.square(net(x)).sum(), optimizer)
    return net.weight.tolist()


def test_a_run_goes_on_bitwise_from_a_file(tmp_path):
    tern.manual_seed(5)
    net = nn.Linear(3, 2)
    optimizer = train.AdamW(net.parameters(), lr=0.01)
    trained(net, optimizer, 3)
    state = {**net.state_dict(), **optimizer.state(net.named_parameters())}
    assert "step" in state and any(name.endswith(".weight") for name in optimizer.state(net.named_parameters()))
    io.save_safetensors(tmp_path / "run", state)
    expected = trained(net, optimizer, 3)

    again = nn.Linear(3, 2)
    optimizer = train.AdamW(again.parameters(), lr=0.01)
    io.load_safetensors_into(tmp_path / "run", {**again.state_dict(), **optimizer.state(again.named_parameters())})
    assert trained(again, optimizer, 3) == expected


def test_a_weight_that_was_replaced_is_noticed():
    net = nn.Linear(3, 2)
    optimizer = train.SGD(net.parameters(), lr=0.1)
    net.weight = tern.ones((2, 3)).requires_grad_()
    with pytest.raises(tern.Error):
        trained(net, optimizer, 1)


def test_sixteen_bits_masters_and_a_scaler():
    net = nn.Linear(3, 2)
    net.set_precision("fp16")
    optimizer = train.SGD(net.parameters(), lr=0.01)
    scaler = train.GradScaler(scale=4)
    loss = tern.square(net(tern.ones((1, 3), dtype=tern.f16))).sum()
    norm = train.update(loss, optimizer, scaler=scaler)
    assert math.isfinite(norm.item()) and scaler.scale.item() == 4
    assert net.weight.dtype == tern.f16 and dict(net.named_masters())["weight"].dtype == tern.f32


def test_flat_parameters_and_averages():
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    before = [p.tolist() for p in net.parameters()]
    net.flatten_parameters()
    assert [p.tolist() for p in net.parameters()] == before
    average = train.Ema(net, decay=0.5, warmup=False)
    train.update(net(tern.ones((1, 3))).sum(), train.SGD(net.parameters(), lr=1))
    average.update()
    mean = (np.array(before[0]) + net[0].weight.detach().numpy()) / 2
    np.testing.assert_allclose(average.averages()["0.weight"].numpy(), mean, rtol=1e-6)


def test_clip_grad_norm():
    p = parameter()
    p.grad = tern.tensor([3.0, 0.0, 4.0], dtype=tern.f64)
    assert train.clip_grad_norm([p], 1).item() == pytest.approx(5)
    np.testing.assert_allclose(p.grad.numpy(), [0.6, 0, 0.8], rtol=1e-5)
