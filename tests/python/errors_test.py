"""Errors in Python's words, whatever is passed."""

import inspect
import pathlib
import random
import re

import pytest

import tern
from tern import nn, train

SOURCE = pathlib.Path(__file__).parents[2] / "src"
# What only C++ says. A name that a user may import is none.
FOREIGN = re.compile(r"\w::\w|\bstd\b|bad_cast|NoGrad|GradMode|AnomalyMode|set_requires_grad|set_grad|undefined|nullopt|= (true|false)\b|\{\.|item<|basic_string|stoi")


def test_errors_name_what_python_has():
    x = tern.ones(2).requires_grad_()
    cases = [
        (lambda: x.add_(1), r"wrap it in tern.no_grad\(\)"),
        (lambda: setattr(x * 2, "requires_grad", True), r"^\[requires_grad_\] expected a leaf: detach\(\) gives one"),
        (lambda: tern.tensor([1]).requires_grad_(), r"^\[requires_grad_\] expected a floating dtype"),
        (lambda: train.SGD([tern.ones(2)], lr=0.1), r"call requires_grad_\(\) on it where the module creates it, or requires_grad_\(False\) to freeze it"),
        (lambda: setattr(x, "grad", tern.ones(3)), r"^\[grad\] expected a gradient of shape \(2,\)"),
        (lambda: nn.Sequential(*[nn.Linear(2, 2)] * 2).parameters(), r"\[nn.Linear\(8, 8\) for _ in range\(n\)\] makes n modules; set is_shared = True"),
        (lambda: tern.attention_softmax(tern.ones(1, 2, 2), tern.AttentionMask(prefix=tern.tensor([1]))), "causal = True"),
        (lambda: tern.ones(2).numpy().fill(tern.ones(2).requires_grad_().numpy()), r"use detach\(\)"),
    ]
    for f, message in cases:
        with pytest.raises(tern.Error, match=message) as caught:
            f()
        assert "\n" not in str(caught.value)


def test_texts_of_the_library_have_pythons_words():
    """Every text of an error in the rooms that Python calls: what is C++'s alone is in the table of python/types.cpp, or here."""
    table = re.search(r"words\[\] = \{(.*?)\n\};", (SOURCE.parent / "python" / "types.cpp").read_text(), re.DOTALL)[1]
    pairs = [(a, b) for a, b in re.findall(r'\{"((?:[^"\\]|\\.)*)", "((?:[^"\\]|\\.)*)"\}', table)]
    assert len(pairs) > 10
    # Of functions that Python has not, or about text that is no C++.
    absent = ("Backward::sink", "jvp differentiates", "json", "EmaScope", "an undefined one at", "captured_step", "encoder_decoder", "kv_cache", "containers.h", "quantize", "autocast.cpp")
    found = []
    literal = re.compile(r'"((?:\\.|[^"\\])*)"')
    for room in ("tensor", "autodiff", "ops", "nn", "train", "io", "models", "data"):
        for path in sorted((SOURCE / room).glob("*.[ch]*")):
            for call in re.finditer(r"\b(?:fail|fail_\w+|refuse|require\w*)\((?:[^;]*?)\);", re.sub(r"(?m)^\s*//.*", "", path.read_text())):
                parts = literal.findall(call[0])
                text = f"[{parts[0]}] " + "".join(parts[1:]) if re.match(r'fail\("', call[0]) else "".join(parts)
                for a, b in pairs:
                    text = text.replace(a, b)
                text = re.sub(r"(\w)::(\w)", r"\1.\2", text)
                if FOREIGN.search(text) and not any(word in text or word in path.name for word in absent):
                    found.append(f"{path.name}: {text}")
    assert found == []


VALUES = [None, True, -1, 0, 2, 3, 2**62, 2**70, -(2**70), 0.5, float("nan"), float("inf"), "x", "cuda:99", b"x", [], [1], (2, 3), [2**70], ["x"], {}, {"a": 1}, object(), len, tern.f16]
VALUES += [tern.ones(2), tern.ones(2, 3), tern.ones(2, 3, 4), tern.arange(3), tern.tensor([True, False]), tern.tensor(2.0), [tern.ones(2)], tern.zeros(0), slice(1, 2)]
ALLOWED = (tern.Error, TypeError, IndexError, OverflowError, MemoryError, BufferError)


def agrees(call):
    try:
        call()
    except ALLOWED as error:
        text = str(error)
        assert not FOREIGN.search(text.partition("\n")[0]), text
    except Exception as error:
        raise AssertionError(f"{type(error).__name__}: {error}") from error


@pytest.mark.parametrize("name", sorted(n for n in dir(tern) if type(getattr(tern, n)).__name__ == "nb_method" and not n.startswith(("set_num", "_"))))
def test_no_arguments_give_an_error_of_cpp(name):
    draw = random.Random(name)
    function = getattr(tern, name)
    for _ in range(60):
        arguments = [draw.choice(VALUES) for _ in range(draw.randrange(4))]
        if name in ("eye", "tile", "sliding_window", "full", "one_hot", "upsample_nearest", "repeat", "rope_table"):
            arguments = [2**61 if isinstance(a, int) and a > 10 else a for a in arguments]
        agrees(lambda: function(*arguments))
        if isinstance(arguments and arguments[0], tern.Tensor) and hasattr(tern.Tensor, name):
            agrees(lambda: getattr(arguments[0], name)(*arguments[1:]))


def test_no_index_gives_an_error_of_cpp():
    draw = random.Random(1)
    for _ in range(600):
        x = tern.ones(2, 3, 4)
        key = draw.choice([draw.choice(VALUES), tuple(draw.choice(VALUES) for _ in range(draw.randrange(5)))])
        agrees(lambda: x[key])
        value = draw.choice(VALUES)
        agrees(lambda: x.__setitem__(key, value))


@pytest.mark.parametrize("place, name", [(p, n) for p in (nn, train) for n in dir(p) if inspect.isclass(getattr(p, n))])
def test_no_class_gives_an_error_of_cpp(place, name):
    draw = random.Random(name)
    make = getattr(place, name)
    signature = getattr(make.__init__, "__nb_signature__", (("", ""),))[0][0]
    names = [n for n in re.findall(r"(\w+): ", signature) if n != "self"]
    for _ in range(40):
        arguments = [draw.choice(VALUES) for _ in range(draw.randrange(4))]
        named = {n: draw.choice(VALUES) for n in draw.sample(names, min(len(names), draw.randrange(3)))}
        small = [a if not isinstance(a, int) or abs(a) < 10 else -a for a in arguments]
        agrees(lambda: make(*small, **{n: v if not isinstance(v, int) or abs(v) < 10 else -1 for n, v in named.items()}))
