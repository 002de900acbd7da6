"""Copies and pickles of tensors, modules and states; state dicts."""

import concurrent.futures
import copy
import inspect
import io as files
import multiprocessing
import pickle

import numpy as np
import pytest

import tern
from tern import models, nn, train


def again(x, how):
    return copy.deepcopy(x) if how == "deepcopy" else pickle.loads(pickle.dumps(x, protocol=how))


HOWS = ["deepcopy", 2, pickle.HIGHEST_PROTOCOL]


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("dtype", [tern.f32, tern.f64, tern.f16, tern.bf16, tern.i32, tern.i64, tern.u8, tern.boolean])
def test_tensors(how, dtype):
    x = tern.arange(12).reshape(3, 4).to(dtype)
    for one in (x, x.t(), x[1:, ::2], x.reshape(1, 12).expand(2, -1), x[0, 0], x[:0], tern.zeros(2, 0, dtype=dtype)):
        y = again(one, how)
        assert (y.dtype, y.shape, y.tolist(), y.device, y.requires_grad) == (dtype, one.shape, one.tolist(), one.device, False)
        assert y.is_contiguous() and not y.is_same(one) and (one.numel() == 0 or y.data_ptr() != one.data_ptr())


@pytest.mark.parametrize("how", HOWS)
def test_gradients_stay_behind_and_marks_come_along(how):
    x = tern.ones(2).requires_grad_()
    (x * 3).sum().backward()
    y = again(x, how)
    assert y.requires_grad and y.is_leaf and y.grad is None and x.grad.tolist() == [3, 3]
    computed = again(x * 2, how)
    assert computed.requires_grad and computed.is_leaf and computed.tolist() == [2, 2]
    frozen, unmarked = again(tern.ones(2).requires_grad_(False), how), again(tern.ones(2), how)
    train.SGD([frozen], lr=0.1)
    assert not frozen.requires_grad and not unmarked.requires_grad
    with pytest.raises(tern.Error, match="marked"):
        train.SGD([unmarked], lr=0.1)


@pytest.mark.parametrize("how", HOWS)
def test_handles_of_one_tensor_stay_handles_of_one(how):
    w = tern.ones(2).requires_grad_()
    a, (b, c), other = again([w, (w, w.detach()), tern.ones(2)], how)
    assert a.is_same(b) and not a.is_same(c) and not a.is_same(other)
    tokens, head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
    head.weight = tokens.weight
    tokens, head = again((tokens, head), how)
    assert head.weight.is_same(tokens.weight)


def test_copy_of_a_tensor_is_a_handle_and_clone_is_none():
    x = tern.ones(2)
    assert copy.copy(x).is_same(x) and not x.clone().is_same(x)


def test_other_values():
    mask = tern.AttentionMask(causal=True, padding=tern.tensor([[True, False]]), window=3)
    scores = tern.randn(1, 2, 2)
    for how in HOWS:
        assert again(tern.bf16, how) is tern.bf16 and again(tern.Device("cpu"), how) == "cpu"
        assert again(mask, how) is not mask and tern.attention_softmax(scores, again(mask, how)).tolist() == tern.attention_softmax(scores, mask).tolist()


def test_what_cannot_be_pickled_says_so():
    net = nn.Linear(2, 2)
    optimizer = train.AdamW(net.parameters())
    for one, message in (
        (optimizer, r"^cannot pickle 'AdamW' object: pickle its state_dict\(\)$"),
        (train.Ema(net), "^cannot pickle 'Ema' object$"),
        (tern.no_grad(), "^cannot pickle 'Scope' object$"),
    ):
        for f in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match=message):
                f(one)


READY = [
    (lambda: nn.Linear(3, 4, bias=False), (2, 3)),
    (lambda: nn.Linear(3, 4), (2, 3)),
    (lambda: nn.Norm("none", 3), (2, 3)),
    (lambda: nn.Norm("rms", 3, eps=0.5), (2, 3)),
    (lambda: nn.LayerNorm(3, eps=0.5, bias=False), (2, 3)),
    (lambda: nn.RMSNorm(3, eps=0.5), (2, 3)),
    (lambda: nn.BatchNorm1d(3, eps=0.5, momentum=0.9), (4, 3)),
    (lambda: nn.BatchNorm2d(3, affine=False, tracks_running=False), (2, 3, 4, 4)),
    (lambda: nn.GroupNorm(2, 4, eps=0.5), (2, 4, 3)),
    (lambda: nn.GroupNorm(2, 4, affine=False), (2, 4, 3)),
    (lambda: nn.ReLU(), (3,)),
    (lambda: nn.SiLU(), (3,)),
    (lambda: nn.Tanh(), (3,)),
    (lambda: nn.Sigmoid(), (3,)),
    (lambda: nn.Identity(), (3,)),
    (lambda: nn.LeakyReLU(0.3), (3,)),
    (lambda: nn.ELU(alpha=2), (3,)),
    (lambda: nn.Softplus(beta=3), (3,)),
    (lambda: nn.GELU(tanh=True), (3,)),
    (lambda: nn.Dropout(0.4), (50,)),
    (lambda: nn.Flatten(1, 2), (2, 3, 4, 2)),
    (lambda: nn.Conv2d(4, 6, (3, 2), stride=2, padding=(1, 0), dilation=2, groups=2, bias=False), (1, 4, 8, 8)),
    (lambda: nn.Conv1d(4, 6, 3, stride=2, padding=1, dilation=2, groups=2), (1, 4, 12)),
    (lambda: nn.MaxPool2d((3, 2), stride=1, padding=1), (1, 2, 6, 6)),
    (lambda: nn.AvgPool2d(2), (1, 2, 6, 6)),
    (lambda: nn.ConvTranspose2d(4, 6, (3, 2), stride=2, padding=(1, 0), output_padding=1, dilation=2, groups=2, bias=False), (1, 4, 5, 5)),
    (lambda: nn.AdaptiveAvgPool2d((3, 2)), (1, 2, 7, 5)),
    (lambda: nn.AdaptiveMaxPool2d(3), (1, 2, 7, 5)),
    (lambda: nn.LSTM(3, 4, layers=2, bias=False, bidirectional=True, batch_first=False), (5, 2, 3)),
    (lambda: nn.GRU(3, 4, layers=2, dropout=0.5), (2, 5, 3)),
    (lambda: nn.MultiHeadAttention(8, heads=4, kv_heads=2, bias=False, rope=tern.rope_table(5, 2), rope_pairs="halves"), (2, 5, 8)),
    (lambda: nn.FeedForward(4, 8, activation="silu", gated=True, bias=False, dropout=0.3), (2, 4)),
    (
        lambda: nn.TransformerLayer(
            width=8, heads=2, kv_heads=1, ff=12, dropout=0.3, attention_dropout=0.2, activation_dropout=0.1, activation="relu", norm="rms",
            layer_norm_eps=0.5, bias=False, cross=False,
        ),
        (2, 5, 8),
    ),
]  # fmt: skip


def run(module, x):
    tern.manual_seed(5)
    y = module(x)
    return [t.tolist() for t in (y if isinstance(y, tuple) else (y,)) if isinstance(t, tern.Tensor)]


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("make, shape", READY)
def test_ready_modules(make, shape, how):
    tern.manual_seed(3)
    module = make()
    for p in module.parameters():
        p.detach().copy_(tern.randn(*p.shape))
    if module.parameters():
        module.parameters()[0].requires_grad_(False)
    x = tern.randn(*shape)
    next_draw = tern.randn(2)
    tern.manual_seed(3)
    make(), [tern.randn(*p.shape) for p in module.parameters()], tern.randn(*shape)
    same = again(module, how)
    assert tern.randn(2).tolist() == next_draw.tolist(), "a copy draws no random numbers"
    assert type(same) is type(module) and repr(same) == repr(module) and same.training
    assert [(n, p.tolist(), p.requires_grad) for n, p in same.named_parameters()] == [(n, p.tolist(), p.requires_grad) for n, p in module.named_parameters()]
    assert not any(p.is_same(q) for p, q in zip(same.parameters(), module.parameters()))
    assert run(same, x) == run(module, x)
    assert run(again(module.eval(), how), x) == run(module, x)


def test_every_ready_module_is_tried():
    tried = {type(make()) for make, _ in READY} | {nn.Embedding, nn.DecoderLM}
    bases = {nn.Module, nn.ModuleList, nn.Sequential, nn.BatchNorm}
    classes = {c for c in vars(nn).values() if inspect.isclass(c) and issubclass(c, nn.Module)}
    assert classes - tried - bases == set()


@pytest.mark.parametrize("how", HOWS)
def test_language_models_with_their_ties(how, tmp_path):
    ids = tern.tensor([[1, 2, 3]])
    scaled = dict(positions="rotary", rope_pairs="halves", rope_scaling=(4.0, 8, 1.0, 4.0), norm="rms", activation="silu", gated=True, bias=False)
    for options in (dict(tied_head=True, head_bias=False), scaled | dict(head_bias=False)):
        model = nn.DecoderLM(vocab=11, length=12, width=8, layers=2, heads=2, ff=16, **options).eval()
        same = again(model, how)
        assert same(ids).tolist() == model(ids).tolist() and len(same.parameters()) == len(model.parameters()) and not same.training
        assert same.head.weight.is_same(same.tokens.weight) == options.get("tied_head", False)
    models.save_hugging_face(model, tmp_path)
    assert again(models.load_hugging_face(tmp_path), how)(ids).allclose(model(ids))
    block = again(model.blocks[1], how)  # a part of one
    assert block(tern.ones(1, 3, 8)).tolist() == model.blocks[1](tern.ones(1, 3, 8)).tolist()


class Net(nn.Module):
    buffers = ("seen",)

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 4)
        self.blocks = [nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU())]
        self.twin = self.fc
        self.twin.is_shared = True
        self.scale = tern.ones(4).requires_grad_()
        self.same = self.scale
        self.seen = tern.zeros(())
        self.act = tern.relu
        self.name, self._cache = "net", {"a": [1]}

    def forward(self, x):
        self.seen += 1
        return self.blocks[1](self.act(self.blocks[0](self.fc(x)))) * self.scale


@pytest.mark.parametrize("how", HOWS)
def test_modules_of_ones_own(how):
    net = Net().eval()
    x = tern.randn(2, 3)
    net(x)
    same = again(net, how)
    assert same(x).tolist() == net(x).tolist() and same.seen.item() == 2 and not same.training and not same.blocks[1].training
    assert same.twin is same.fc and same.same.is_same(same.scale) and same.act is tern.relu and same.name == "net" and same._cache == {"a": [1]}
    assert [n for n, _ in same.named_parameters()] == [n for n, _ in net.named_parameters()]
    same._cache["a"].append(2)
    train.update(same(x).sum(), train.SGD(same.parameters(), lr=0.1))
    assert net._cache == {"a": [1]} and net.scale.tolist() == [1] * 4 != same.scale.tolist()
    same.extra = nn.Linear(2, 2)  # it is a whole module
    assert "extra.weight" in same.state_dict()


def test_a_shallow_copy_shares_its_members():
    net = Net()
    other = copy.copy(net)
    other.name = "other"
    assert other.fc is net.fc and other.scale is net.scale and net.name == "net" and type(other) is Net


class Slim(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.width, self.fc, self.cache = width, nn.Linear(width, 1), [0] * 1000

    def __getstate__(self):
        return {name: value for name, value in vars(self).items() if name != "cache"}

    def __setstate__(self, state):
        super().__setstate__(state)
        self.cache = []


def test_a_class_may_choose_its_state():
    slim = pickle.loads(pickle.dumps(Slim(2)))
    assert slim.cache == [] and slim.fc(tern.ones(2)).shape == (1,)


def double(module_and_x):
    module, x = module_and_x
    return module(x) * 2


def test_processes_pass_tensors_and_modules():
    module, x = nn.Linear(2, 3), tern.ones(4, 2)
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:  # notices a process that died
        (y,) = pool.map(double, [(module, x)])
    assert y.tolist() == (module(x) * 2).tolist()


def test_files_hold_what_dumps_gives():
    out = files.BytesIO()
    pickle.dump({"net": Net(), "step": 3, "array": np.ones(2)}, out)
    out.seek(0)
    loaded = pickle.load(out)
    assert loaded["net"].count_parameters() == Net().count_parameters() and loaded["step"] == 3


def test_a_damaged_pickle_is_an_error():
    f, arguments = tern._core._Elements.__reduce__(tern.ones(3).__reduce__()[1][0])
    with pytest.raises(tern.Error, match=r"^\[pickle\] expected the bytes of shape \(3,\), f32 but got 11$"):
        f(arguments[0][:-1], *arguments[1:])
    with pytest.raises(tern.Error):
        f(arguments[0], arguments[1], (1 << 40,), *arguments[3:])


def test_state_dicts_of_modules():
    net, other = Net(), Net()
    state = net.state_dict()
    assert list(state) == [n for n, _ in net.named_parameters()] + ["seen"] and state["scale"].is_same(net.scale)
    saved = {name: tensor.clone().detach() for name, tensor in state.items()}
    assert other.load_state_dict(saved) == ([], []) and other.fc.weight.tolist() == net.fc.weight.tolist() and other.fc.weight.requires_grad
    assert other.load_state_dict(list(saved.items())) == ([], [])
    before = {name: tensor.tolist() for name, tensor in other.state_dict().items()}
    wrong = {name: tensor + 1 for name, tensor in saved.items() if name != "fc.bias"} | {"head.weight": tern.ones(2)}
    with pytest.raises(tern.Error, match=r"^\[load_state_dict\] expected all names and no others but got none of fc.bias, and unexpected head.weight: "):
        other.load_state_dict(wrong)
    assert {name: tensor.tolist() for name, tensor in other.state_dict().items()} == before
    assert other.load_state_dict(wrong, strict=False) == (["fc.bias"], ["head.weight"])
    assert other.fc.bias.tolist() == before["fc.bias"] and other.scale.tolist() == (net.scale + 1).tolist()
    with pytest.raises(tern.Error, match=r"expected scale of shape \(4,\), f32 but got \(5,\), f32"):
        other.load_state_dict(saved | {"scale": tern.ones(5)}, strict=False)
    with pytest.raises(TypeError):
        other.load_state_dict({"scale": [1, 2, 3, 4]})


@pytest.mark.parametrize("make", [lambda p: train.SGD(p, lr=0.1, momentum=0.9), lambda p: train.AdamW(p, lr=0.01), lambda p: train.Lion(p, lr=0.01)])
def test_a_training_goes_on_from_state_dicts(make):
    def step(net, optimizer, x):
        train.update(net(x).square().mean(), optimizer)

    tern.manual_seed(0)
    x = tern.randn(4, 3)
    net = Net()
    optimizer = make(net.parameters())
    for _ in range(3):
        step(net, optimizer, x)
    saved = pickle.loads(pickle.dumps({"net": net.state_dict(), "optimizer": optimizer.state_dict()}))
    resumed = Net()
    resumed_optimizer = make(resumed.parameters())
    assert resumed.load_state_dict(saved["net"]) == resumed_optimizer.load_state_dict(saved["optimizer"]) == ([], [])
    for _ in range(3):
        step(net, optimizer, x)
        step(resumed, resumed_optimizer, x)
    assert [p.tolist() for p in resumed.parameters()] == [p.tolist() for p in net.parameters()]
    del saved["optimizer"]["step"]
    with pytest.raises(tern.Error, match="none of step"):
        resumed_optimizer.load_state_dict(saved["optimizer"])
