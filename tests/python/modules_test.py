"""Modules: ready ones, those written in Python, lists, files, models."""

import copy
import gc
import re
import signal
import time

import numpy as np
import pytest

import tern
from tern import io, models, nn, train


class Net(nn.Module):
    buffers = ("seen",)

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 8)
        self.blocks = [nn.Linear(8, 8), nn.Linear(8, 8)]
        self.heads = {"a": nn.Linear(8, 2)}
        self.scale = tern.ones(8).requires_grad_()
        self.seen = tern.zeros(())
        self._cache = tern.zeros(3)
        self.name = "net"
        self.nothing = None

    def forward(self, x, *, power=1):
        h = tern.relu(self.fc(x)) * self.scale**power
        for block in self.blocks:
            h = h + tern.relu(block(h))
        return self.heads["a"](h)


NAMES = ["fc.weight", "fc.bias", "blocks.0.weight", "blocks.0.bias", "blocks.1.weight", "blocks.1.bias", "heads.a.weight", "heads.a.bias", "scale"]


def test_attributes_are_members():
    net = Net()
    assert [n for n, p in net.named_parameters()] == NAMES and [n for n, b in net.named_buffers()] == ["seen"]
    assert len(net.parameters()) == 9 and net.count_parameters() == 4 * 8 + 8 + 2 * (64 + 8) + 18 + 8
    assert dict(net.named_parameters())["scale"].is_same(net.scale)
    assert net(tern.ones((3, 4)), power=2).shape == (3, 2)
    assert repr(net) == (
        "Net(\n  (fc): Linear(in=4, out=8, bias=True)\n  (blocks.0-1): 2 x Linear(in=8, out=8, bias=True)\n"
        "  (heads.a): Linear(in=8, out=2, bias=True)\n)"
    )
    assert "210 parameters, 210 trained, 0 frozen" in net.summary()
    assert re.search(r"scale +Net +\(8,\) +f32 +8 +32 B +trained", net.summary())


def test_train_eval_and_freezing_reach_all_below():
    net = Net()
    net.drop = nn.Sequential(nn.Dropout(0.5))
    net.eval()
    assert not net.training and not net.drop[0].training and not net.fc.training
    net.train()
    assert net.drop[0].training
    net.blocks[0].requires_grad_(False)
    assert not net.blocks[0].weight.requires_grad and net.fc.weight.requires_grad


def test_zero_grad_forgets_the_gradients():
    net = Net()
    net(tern.ones((3, 4))).sum().backward()
    assert all(p.grad is not None for p in net.parameters())
    net.zero_grad()
    assert all(p.grad is None for p in net.parameters())


def test_moving_keeps_handles():
    net = Net()
    scale, weight = net.scale, net.fc.weight
    assert net.to(tern.f64) is net
    assert scale.dtype == weight.dtype == net.scale.dtype == tern.f64 and net.seen.dtype == tern.f64
    assert net.to("cpu") is net


def test_a_parameter_that_says_nothing_is_refused():
    class Silent(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = tern.ones(2)

    with pytest.raises(tern.Error, match="requires_grad"):
        train.SGD(Silent().parameters(), lr=0.1)


def test_names_that_meet_and_lists_of_one_layer_are_refused():
    layer = nn.Linear(2, 2)
    twice = nn.Sequential(layer, layer)
    with pytest.raises(tern.Error, match="have the same"):
        twice.parameters()
    layer.is_shared = True
    assert len(twice.parameters()) == 2


def test_errors_name_the_module_by_its_path():
    with pytest.raises(tern.Error, match=r"in module fc \(Linear\)"):
        Net()(tern.ones((3, 5)))

    class Fails(nn.Module):
        def forward(self, x):
            return tern.matmul(x, x)

    with pytest.raises(tern.Error, match=r"\[matmul\].*Fails"):
        Fails()(tern.ones((2, 3)))
    with pytest.raises(AttributeError, match="forward"):
        nn.Module()(1)


def test_errors_of_python_pass_through_a_call():
    class Fails(nn.Module):
        def forward(self, x):
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        nn.Sequential(Fails())(tern.ones(1))
    with pytest.raises(tern.Error, match="one element") as caught:
        tern.ones(2).item()
    assert "module" not in str(caught.value)  # the frame was closed


def test_ready_modules_are_final_and_know_their_attributes():
    with pytest.raises(TypeError):

        class Mine(nn.Linear):
            pass

    with pytest.raises(AttributeError):
        nn.Linear(2, 2).wieght = tern.ones((2, 2))


def test_ties_and_assignment():
    tokens, head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
    before = head.weight
    head.weight = tokens.weight
    assert head.weight.is_same(tokens.weight) and before.shape == (5, 3) and not before.is_same(tokens.weight)

    class Tied(nn.Module):
        pass

    both = Tied()
    both.tokens, both.head = tokens, head
    assert list(both.state_dict()) == ["tokens.weight"] and head.bias is None
    with pytest.raises(tern.Error):
        head.weight = None
        head(tern.ones(3))


def test_a_module_lives_as_long_as_its_parts_are_used():
    weight = nn.Linear(3, 2).weight
    gc.collect()
    assert weight.shape == (2, 3)
    attn = nn.DecoderLM(vocab=8, width=8, heads=2, layers=2, length=4, ff=8).blocks[1].attn
    gc.collect()
    assert attn.qkv.weight.shape == (24, 8) and attn.query is None


def test_a_module_within_itself_is_an_error():
    net = Net()
    net.blocks.append(nn.ModuleList([net]))
    with pytest.raises(RecursionError):
        net.parameters()


@pytest.mark.parametrize("container", [[], {}])
def test_a_container_within_itself_is_an_error(container):
    net = Net()
    net.blocks = container
    container.append(container) if container == [] else container.update(itself=container)
    with pytest.raises(RecursionError, match="does one contain itself"):
        net.parameters()
    net.blocks = []
    assert net.parameters()  # the levels are left again


def test_modules_are_collected():
    class Watched(Net):
        alive = 0

        def __del__(self):
            Watched.alive -= 1

    net = Watched()
    Watched.alive += 1
    net.itself = [net.fc, {"inner": Net()}]
    del net
    gc.collect()
    assert Watched.alive == 0


def test_lists():
    seq = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Sequential(nn.Linear(3, 1)))
    assert list(seq.state_dict()) == ["0.weight", "0.bias", "2.0.weight", "2.0.bias"]
    assert len(seq) == 3 and isinstance(seq[1], nn.ReLU) and [type(m).__name__ for m in seq] == ["Linear", "ReLU", "Sequential"]
    layers = nn.ModuleList([nn.Linear(2, 2)])
    layers.append(nn.Linear(2, 2))
    assert list(layers.state_dict())[-1] == "1.bias" and nn.Sequential()(tern.ones(1)).item() == 1


def test_linear_embedding_and_norms_beside_numpy():
    x = tern.randn((5, 4))
    linear = nn.Linear(4, 3)
    np.testing.assert_allclose(linear(x).detach().numpy(), x.numpy() @ linear.weight.detach().numpy().T + linear.bias.detach().numpy(), rtol=1e-5, atol=1e-6)
    table = nn.Embedding(6, 4)
    np.testing.assert_array_equal(table(tern.tensor([5, 0])).detach().numpy(), table.weight.detach().numpy()[[5, 0]])
    a = x.numpy()
    normal = (a - a.mean(-1, keepdims=True)) / np.sqrt(a.var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(nn.LayerNorm(4)(x).detach().numpy(), normal, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(nn.RMSNorm(4)(x).detach().numpy(), a / np.sqrt((a * a).mean(-1, keepdims=True) + 1e-5), rtol=1e-4)
    np.testing.assert_allclose(nn.Norm("rms", 4)(x).detach().numpy(), nn.RMSNorm(4)(x).detach().numpy())
    images = tern.randn((6, 4, 3, 3))
    norm = nn.BatchNorm2d(4, momentum=1)
    y = norm(images).detach().numpy()
    assert abs(y.mean((0, 2, 3))).max() < 1e-5 and abs(y.var((0, 2, 3)) - 1).max() < 1e-3
    np.testing.assert_allclose(norm.running_mean.numpy(), images.numpy().mean((0, 2, 3)), rtol=1e-4, atol=1e-6)
    assert [n for n, b in norm.named_buffers()] == ["running_mean", "running_var", "num_batches_tracked"]
    assert nn.GroupNorm(2, 4)(images).shape == images.shape and nn.BatchNorm1d(4)(x).shape == x.shape


@pytest.mark.parametrize(
    "module, f",
    [
        (nn.ReLU(), tern.relu),
        (nn.SiLU(), tern.silu),
        (nn.Tanh(), tern.tanh),
        (nn.Sigmoid(), tern.sigmoid),
        (nn.Identity(), lambda x: x),
        (nn.GELU(), tern.gelu),
        (nn.GELU(tanh=True), tern.gelu_tanh),
        (nn.LeakyReLU(0.3), lambda x: tern.leaky_relu(x, 0.3)),
        (nn.ELU(alpha=2), lambda x: tern.elu(x, alpha=2)),
        (nn.Softplus(), tern.softplus),
        (nn.Flatten(), lambda x: tern.flatten(x, 1)),
        (nn.AvgPool2d(2), lambda x: tern.avg_pool2d(x, 2)),
        (nn.Dropout(0), lambda x: x),
    ],
)
def test_activations(module, f):
    x = tern.randn((2, 3, 4, 4))
    assert module(x).tolist() == f(x).tolist() == module.forward(x).tolist()


def test_recurrent_modules_go_on_from_a_state():
    x = tern.randn((2, 6, 3))
    lstm = nn.LSTM(3, 4, layers=2)
    y, (h, c) = lstm(x)
    first, state = lstm(x[:, :4])
    second, (h2, c2) = lstm(x[:, 4:], state)
    assert y.shape == (2, 6, 4) and h.shape == c.shape == (2, 2, 4)
    assert tern.allclose(y, tern.cat([first, second], 1), absolute=1e-6) and tern.allclose(h, h2, absolute=1e-6)
    gru = nn.GRU(3, 4, bidirectional=True)
    y, h = gru(x)
    assert y.shape == (2, 6, 8) and h.shape == (2, 2, 4)
    assert "weight_hh_l0_reverse" in gru.state_dict()


def test_attention_modules():
    x, memory = tern.randn((2, 5, 8)), tern.randn((2, 3, 8))
    causal = tern.AttentionMask(causal=True)
    attention = nn.MultiHeadAttention(8, heads=2)
    y = attention(x, mask=causal)
    assert tern.allclose(y[:, :2], attention(x[:, :2], mask=causal), absolute=1e-6) and not tern.allclose(y, attention(x))
    windowed = nn.MultiHeadAttention(8, heads=2, window=2)
    windowed.load_state_dict(attention.state_dict())
    assert tern.allclose(windowed(x, mask=causal), attention(x, mask=tern.AttentionMask(causal=True, window=2)))
    assert not tern.allclose(windowed(x, mask=causal), y)
    assert tern.allclose(copy.deepcopy(windowed)(x, mask=causal), windowed(x, mask=causal))
    cross = nn.MultiHeadAttention(8, heads=2, cross=True)
    assert cross(x, memory).shape == x.shape and cross.qkv is None
    hidden = tern.AttentionMask(padding=tern.tensor([[False, True, True]] * 2))
    assert tern.allclose(cross(x, memory, mask=hidden), cross(x, memory[:, :1]), absolute=1e-6)
    layer = nn.TransformerLayer(width=8, heads=2, ff=16, dropout=0, cross=True, activation="relu")
    assert layer(x, causal, memory).shape == x.shape and layer.ff.fc.weight.shape == (16, 8)
    with pytest.raises(tern.Error, match="activation"):
        nn.FeedForward(8, 8, activation="swish")


def tiny(**options):
    return nn.DecoderLM(vocab=11, length=12, width=8, layers=2, heads=2, ff=16, dropout=0, **options)


def test_decoder_lm_loss_and_generation():
    tern.manual_seed(2)
    model = tiny(positions="rotary", norm="rms", activation="silu", gated=True, bias=False, head_bias=False, kv_heads=1)
    ids = tern.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])
    logits = model(ids)
    assert logits.shape == (2, 4, 11) and model.hidden(ids).shape == (2, 4, 8) and (model.vocab, model.width, model.length) == (11, 8, 12)
    assert tern.allclose(model.loss(ids, ids), tern.cross_entropy(logits, ids), absolute=1e-6)
    (greedy,) = nn.generate(model, [[1, 2, 3]], max_new_tokens=4)
    expected, text = [], [1, 2, 3]
    for _ in range(4):
        token = tern.argmax(model(tern.tensor([text]))[0, -1]).item()
        expected.append(token)
        text.append(token)
    assert greedy[0].tokens == expected and greedy[0].log_probability < 0
    beams = nn.generate(model, [[1], [2, 3]], search="beam", beam=3, n_best=2, max_new_tokens=3)
    assert [len(b) for b in beams] == [2, 2] and beams[0][0].score >= beams[0][1].score
    one, same = (nn.generate(model, [[1]], search="sample", seed=4, max_new_tokens=6)[0][0].tokens for _ in range(2))
    assert one == same
    with pytest.raises(tern.Error):
        nn.generate(model, [[99]])


def test_a_signal_ends_a_generation():
    class Stop(Exception):
        pass

    def stop(*_):
        raise Stop

    model = nn.DecoderLM(vocab=11, length=30000, width=8, layers=1, heads=1, ff=8, positions="rotary")  # minutes, if nothing ended it
    before = signal.signal(signal.SIGALRM, stop)
    threads = tern.num_threads()
    try:
        for count in (1, 2):
            tern.set_num_threads(count)
            begin = time.monotonic()
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with pytest.raises(Stop):
                nn.generate(model, [[1, 2, 3]] * 40)
            assert time.monotonic() - begin < 5
    finally:
        tern.set_num_threads(threads)
        signal.signal(signal.SIGALRM, before)
    assert len(nn.generate(model, [[1]], max_new_tokens=3)[0][0].tokens) == 3


def test_files(tmp_path):
    net, other = Net(), Net()
    path = tmp_path / "net.safetensors"
    io.save_safetensors(path, net.state_dict(), metadata={"step": "3"})
    assert io.load_safetensors_metadata(str(path)) == {"step": "3"}
    loaded = io.load_safetensors(path)
    assert sorted(loaded) == sorted(NAMES + ["seen"]) and loaded["scale"].tolist() == net.scale.tolist()
    io.load_safetensors_into(path, other.state_dict())
    assert all(tern.all(a == b) for a, b in zip(net.parameters(), other.parameters()))
    assert other.fc.weight.requires_grad
    with pytest.raises(tern.FileError, match="net.safetensors"):
        io.load_safetensors_into(path, other.named_parameters())


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_hugging_face_models_come_and_go(name, tmp_path):
    if name == "gpt2":
        model = tiny(head_bias=False, tied_head=True, activation="gelu_tanh")
    else:
        model = tiny(positions="rotary", rope_pairs="halves", norm="rms", activation="silu", gated=True, bias=False, head_bias=False)
    models.save_hugging_face(model, tmp_path)
    same = models.load_hugging_face(tmp_path)
    ids = tern.tensor([[3, 1, 4, 1, 5]])
    assert tern.allclose(model(ids), same(ids)) and not same.training
    with pytest.raises(tern.FileError):
        models.load_hugging_face(tmp_path / "missing")


def test_initialisers():
    w = tern.zeros((64, 32))
    assert nn.init.normal(w, mean=1, deviation=0).is_same(w) and w[0, 0].item() == 1
    bound = (6 / (64 + 32)) ** 0.5
    nn.init.xavier_uniform(w)
    assert 0.9 * bound < tern.max(tern.abs(w)).item() <= bound
