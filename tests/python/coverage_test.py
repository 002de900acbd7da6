"""Each op of the C++ headers is a function of Python, a method if it takes a tensor first, and has a docstring."""

import pathlib
import sys

import pytest

import tern
from tern import io, models, nn, train

ROOT = pathlib.Path(__file__).parents[2]
sys.path.append(str(ROOT / "python"))  # behind the installed package, whose sources lie there too
import docstrings  # noqa: E402

SOURCE = ROOT / "src"
OPS = {e.name: e for path in sorted((SOURCE / "ops").glob("*.h")) if path.name != "op.h" for e in docstrings.Reader(path).entries if e.kind == "function" and "." not in e.name}

# Functions of src/ops that Python has not, and why.
ABSENT = {
    "name": "enums are their names in Python",
    "checkpoint_policy_of": "enums are their names in Python",
    "checkpoint": "of functions in C++; modules have activation_checkpointing",
    "quantize": "quantised weights are C++'s so far",
    "dequantize": "quantised weights are C++'s so far",
    "quantized_linear": "quantised weights are C++'s so far",
    "quantized_embedding": "quantised weights are C++'s so far",
    "has_matmul_precision": "matmul_precision falls back by itself",
    "tensors_of": "of a batch of C++",
}
# Classes of src/nn and src/train that Python has not, and why. Options are keywords, enums are names, results are tuples.
ABSENT_CLASSES = {
    "nn.AnyModule": "any module of Python's is one",
    "nn.Callable": "any module of Python's is one",
    "nn.Continuation": "of nn.generate's parts",
    "nn.DecodingGraphs": "of nn.generate's parts",
    "nn.AnyMixer": "token mixers are C++'s so far",
    "nn.CausalConv": "token mixers are C++'s so far",
    "nn.ConvMixer": "token mixers are C++'s so far",
    "nn.EncoderDecoder": "not yet: docs/python.md",
    "nn.FlatParameters": "Module.flatten_parameters keeps them",
    "nn.Fans": "of nn.init's parts",
    "nn.init.Fans": "of nn.init's parts",
    "nn.H3Mixer": "token mixers are C++'s so far",
    "nn.HyenaMixer": "token mixers are C++'s so far",
    "nn.KvCache": "of nn.generate's parts",
    "nn.LayerCache": "of nn.generate's parts",
    "nn.LowRank": "adapters are C++'s so far",
    "nn.MambaMixer": "token mixers are C++'s so far",
    "nn.Memory": "of EncoderDecoder's parts",
    "nn.Mixer": "token mixers are C++'s so far",
    "nn.MixerKind": "token mixers are C++'s so far",
    "nn.MixerOf": "token mixers are C++'s so far",
    "nn.MixerState": "token mixers are C++'s so far",
    "nn.ModuleScope": "a call opens it",
    "nn.QuantizedForm": "quantised weights are C++'s so far",
    "nn.RecurrentMixer": "token mixers are C++'s so far",
    "nn.RecurrentLayers": "of LSTM's and GRU's parts",
    "nn.RecurrentWeights": "of LSTM's and GRU's parts",
    "nn.Rwkv4Mixer": "token mixers are C++'s so far",
    "nn.Rwkv7Mixer": "token mixers are C++'s so far",
    "nn.ResidualStream": "of TransformerLayer's parts",
    "nn.ScoredTokens": "of likelihoods, which are C++'s so far",
    "nn.Size2d": "a number or a pair",
    "nn.Summary": "Module.summary() is its text",
    "nn.SummaryRow": "Module.summary() is its text",
    "nn.TokenIds": "a list of numbers",
    "nn.TransformerModel": "of DecoderLM's parts",
    "nn.Visitor": "attributes are members",
    "train.OptimizerOf": "SGD, Adam and others",
    "train.ClippedNorm": "of update's parts",
    "train.EmaScope": "not yet",
    "train.Exchange": "of several processes",
    "train.GradientScale": "of update's parts",
    "train.ParameterRange": "of a rule's parts",
    "train.PrecisionScope": "Module.set_precision and autocast",
}
NO_METHODS = {"where", "unfold", "embedding"}


def found(name):
    where, _, last = name.rpartition(".")
    place = {"": tern, "nn": nn, "nn.init": nn.init, "train": train, "train.schedule": train.schedule, "io": io, "models": models}[where]
    return getattr(place, last, None)


def test_the_headers_are_read():
    assert len(OPS) > 150 and "relu" in OPS and OPS["fold"].declared.startswith("const Tensor& columns")
    assert set(ABSENT) <= set(OPS), "listed as absent, but no header of src/ops declares it"


@pytest.mark.parametrize("name", sorted(OPS))
def test_an_op_is_a_function_with_a_docstring(name):
    function = getattr(tern, name, None)
    if name in ABSENT:
        assert function is None, "it is there: take it off the list"
        return
    assert function is not None, f"src/ops/{OPS[name].header} declares it: bind it in python/, or say in ABSENT why not"
    signature, text = function.__doc__.split("\n\n", 1)
    assert signature.startswith(f"{name}(") and text.strip()
    if function.__nb_signature__[0][0].split("(")[1].startswith("x: tern._core.Tensor"):
        assert hasattr(tern.Tensor, name) != (name in NO_METHODS)


def test_every_function_of_the_package_has_a_docstring():
    silent = []
    for place in (tern, nn, nn.init, train, train.schedule, io, models):
        for name in dir(place):
            value = getattr(place, name)
            if not name.startswith("_") and callable(value):
                text = value.__doc__ or ""
                is_function = type(value).__name__ == "nb_method"
                if not text or (is_function and not text.partition("\n\n")[2].strip()):
                    silent.append(f"{place.__name__}.{name}")
    assert silent == []


def test_functions_of_a_tensor_are_methods():
    x = tern.ones((2, 2))
    for name in dir(tern):
        function = getattr(tern, name)
        if type(function).__name__ != "nb_method" or not function.__nb_signature__[0][0].partition("(")[2].startswith(("x: tern._core.Tensor", "a: tern._core.Tensor")):
            continue
        assert (name in NO_METHODS) != hasattr(x, name), name
    assert not hasattr(x, "where") and not hasattr(x, "zeros")


@pytest.mark.parametrize("room", ["nn", "train"])
def test_every_class_is_there(room):
    entries = [e for path in sorted((SOURCE / room).glob("*.h")) for e in docstrings.Reader(path).entries if e.kind == "class" and e.name.count(".") == 1]
    assert len(entries) > 10
    enums = {"Activation", "Initialization", "NormKind", "Positions", "Precision", "Search"}
    absent = []
    for entry in entries:
        last = entry.name.split(".")[1]
        if entry.name in ABSENT_CLASSES:
            assert found(entry.name) is None, f"{entry.name} is there: take it off the list"
        elif not last.endswith(("Options", "Result")) and last not in enums and found(entry.name) is None:
            absent.append(f"{entry.name} of {entry.header}")
    assert absent == [], "bind them in python/, or say in ABSENT_CLASSES why not"


def test_docstrings_say_it_in_pythons_words():
    assert tern.relu.__doc__ == "relu(x: Tensor) -> Tensor\n\nmax(x, 0); the derivative at 0 is 0"
    assert "(N) or None" in tern.layer_norm.__doc__
    assert "label_smoothing: part of the target's probability" in tern.cross_entropy.__doc__
    assert "groups: groups of channels" in nn.Conv2d.__doc__
    cpp = [name for name in dir(tern) if any(w in (getattr(tern, name).__doc__ or "") for w in ("std::", "DType::", "nullopt", "set_requires_grad"))]
    assert cpp == []
