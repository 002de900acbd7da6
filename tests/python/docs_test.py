"""The programs of docs/python.md run, and print what the page says."""

import pathlib
import re

import tern

PAGE = (pathlib.Path(__file__).parents[2] / "docs" / "python.md").read_text()


def test_the_first_program_prints_what_stands_below_it(capsys):
    program, printed = re.search(r"```python\n(.*?)```\n\n```\n(.*?)```", PAGE, re.DOTALL).groups()
    exec(compile(program, "docs/python.md", "exec"), {})
    assert capsys.readouterr().out == printed


def test_the_module_of_ones_own_is_one():
    programs = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(programs) == 3
    names = {"tern": tern, "nn": tern.nn}
    exec(compile(programs[1], "docs/python.md", "exec"), names)
    net = names["Net"]()
    assert net(tern.ones((4, 2))).shape == (4, 8) and [name for name, _ in net.named_buffers()] == ["seen"]
    assert {"fc.weight", "blocks.2.bias", "scale"} < set(dict(net.named_parameters()))


def test_the_op_of_ones_own_has_a_gradient():
    names = {"tern": tern}
    exec(compile(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[2], "docs/python.md", "exec"), names)
    x = tern.tensor([1.0, 2.0], dtype=tern.f64, requires_grad=True)
    assert tern.gradcheck(names["Cube"].apply, x) and tern.gradgradcheck(names["Cube"].apply, x)
