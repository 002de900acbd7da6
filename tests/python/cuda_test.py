"""The package on a GPU; skipped where there is none."""

import pytest

import tern
from tern import nn, train

if tern.cuda_device_count() == 0:
    pytest.skip("there is no GPU", allow_module_level=True)


def test_tensors_compute_there_and_hand_their_memory_on():
    x = tern.tensor([1.0, 2.0], device="cuda")
    assert x.device == "cuda:0" and (x + 1).to("cpu").tolist() == [2, 3] and x[1].item() == 2
    y = tern.from_dlpack(x)
    assert y.data_ptr() == x.data_ptr() and x.__dlpack_device__() == (2, 0)
    y += 1
    assert x.tolist() == [2, 3]
    with pytest.raises(tern.Error, match="on the CPU"):
        x.numpy()


def test_a_model_trains_there():
    tern.manual_seed(1)
    with tern.device_scope("cuda"):
        x = tern.randn((256, 2))
        net = nn.Sequential(nn.Linear(2, 64), nn.GELU(), nn.Linear(64, 2))
    inside = tern.cast(tern.sum(tern.square(x), 1) < 1.4, tern.i64)
    optimizer = train.AdamW(net.parameters(), lr=0.01)
    for _ in range(50):
        loss = tern.cross_entropy(net(x), inside)
        train.update(loss, optimizer)
    assert f"{loss.item():.2f}" == "0.09"
