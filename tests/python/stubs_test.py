"""The package: its version, its stubs, and that mypy reads them."""

import importlib
import pathlib
import re
import subprocess
import sys

import pytest

import tern

PACKAGE = pathlib.Path(tern.__file__).parent
PARTS = ["_core/__init__", "_core/_nn/__init__", "_core/_nn/init", "_core/_train/__init__", "_core/_train/schedule", "_core/_io", "_core/_models"]

PROGRAM = """
import tern
from tern import io, nn, train

class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 3, bias=False)

    def forward(self, x: tern.Tensor) -> tern.Tensor:
        return tern.relu(self.fc(x)) * 2

net = Net().to(tern.f32)
optimizer = train.AdamW(net.parameters(), lr=0.01)
loss = tern.cross_entropy(net(tern.randn((4, 2))), tern.zeros(4, dtype=tern.i64), reduction="sum")
train.update(loss, optimizer, max_norm=1.0)
same: tern.Tensor = loss == 1
weights: dict[str, tern.Tensor] = net.state_dict()
names: list[str] = [name for name, weight in net.named_parameters() if weight.requires_grad]
x = tern.randn(2, 3).reshape(3, -1).permute(1, 0).exp().flip(0, 1)
x.sum(dim=1, keepdim=True) + x.sum(axis=1, keepdims=True) + tern.sum(x, dims=(0, 1)) + x.clamp(min=0).float()
net.eval().train().to("cpu")
with tern.no_grad():
    size: int = loss.shape[0]
try:
    io.save_safetensors("x", weights)
except tern.FileError:
    pass
"""
MISTAKES = {
    'tern.zeros(2, dtype="f32")': "arg-type|call-overload",
    'tern.mse_loss(x, x, reduction="avg")': "arg-type|call-overload",
    "train.AdamW([x], learning_rate=1)": "call-arg",
    "n: int = tern.relu(x)": "assignment",
    "nn.Linear()": "call-arg",
    "tern.no_such_op(x)": "attr-defined",
}


def test_the_version_is_cmakes():
    source = pathlib.Path(__file__).parents[2] / "CMakeLists.txt"
    assert f"project(tern VERSION {tern.__version__} " in source.read_text()


@pytest.mark.parametrize("part", PARTS)
def test_stubs_are_there_and_parse(part):
    compile((PACKAGE / f"{part}.pyi").read_text(), part, "exec")
    assert (PACKAGE / "py.typed").exists()


def test_every_public_name_is_in_a_stub():
    missing = []
    for module, part in (("tern", PARTS[0]), ("tern.nn", PARTS[1]), ("tern.train", PARTS[3]), ("tern.io", PARTS[5]), ("tern.models", PARTS[6])):
        stub = (PACKAGE / f"{part}.pyi").read_text()
        names = [n for n in dir(importlib.import_module(module)) if not n.startswith("_")]
        source = (PACKAGE / (module.removeprefix("tern.") + ".py")).read_text() if module != "tern" else (PACKAGE / "__init__.py").read_text()
        missing += [f"{module}.{name}" for name in names if not re.search(rf"\b{name}(?!\w)", stub + source)]
    assert missing == []


def mypy(tmp_path, source):
    (tmp_path / "program.py").write_text(source)
    # nanobind writes os.PathLike without its type, which is no matter in an installed package, whose files mypy does not blame.
    options = ["--strict", "--disable-error-code=type-arg", "--no-error-summary", "--cache-dir", str(tmp_path / "cache")]
    place = {} if "site-packages" in PACKAGE.parts else {"MYPYPATH": str(PACKAGE.parent)}
    run = subprocess.run([sys.executable, "-m", "mypy", *options, "program.py"], cwd=tmp_path, env=place, capture_output=True, text=True)
    assert run.stderr == ""
    return run.stdout


def test_mypy_reads_a_right_program_and_finds_mistakes(tmp_path):
    assert mypy(tmp_path, PROGRAM) == ""
    lines = ["import tern", "from tern import nn, train", "x = tern.ones(1)", *MISTAKES]
    said = mypy(tmp_path, "\n".join(lines))
    for number, kind in enumerate(MISTAKES.values(), 4):
        assert re.search(rf"^program.py:{number}: error: .*\[({kind})\]$", said, re.MULTILINE), said
