"""The programs of docs/python.md and docs/tutorial.md run, and print what the pages say."""

import pathlib
import re

import pytest
import tern

DOCS = pathlib.Path(__file__).parents[2] / "docs"


def programs_of(page):
    """Each program with what its runs print, one after another: the plain blocks from there to the next program or heading."""
    result, is_open = [], False
    for language, text in re.findall(r"^```(\w*)\n(.*?)^```$|^#", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE):
        if language == "python":
            result.append((text, []))
        elif text and not language and result and is_open:
            result[-1][1].append(text)
        is_open = language == "python" or is_open and text != "" and not language
    return result


PROGRAMS = [(page, *program) for page in ("python.md", "tutorial.md") for program in programs_of(page) if program[1]]


def test_the_programs_are_there():
    assert [page for page, _, _ in PROGRAMS] == ["python.md"] + 5 * ["tutorial.md"]


@pytest.mark.parametrize("page, program, printed", PROGRAMS)
def test_a_program_prints_what_stands_below_it(page, program, printed, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for text in printed:
        exec(compile(program, page, "exec"), {})
        assert capsys.readouterr().out == text


def test_the_module_of_ones_own_is_one():
    programs = [text for text, _ in programs_of("python.md")]
    assert len(programs) == 3
    names = {"tern": tern, "nn": tern.nn}
    exec(compile(programs[1], "docs/python.md", "exec"), names)
    net = names["Net"]()
    assert net(tern.ones((4, 2))).shape == (4, 8) and [name for name, _ in net.named_buffers()] == ["seen"]
    assert {"fc.weight", "blocks.2.bias", "scale"} < set(dict(net.named_parameters()))


def test_the_op_of_ones_own_has_a_gradient():
    names = {"tern": tern}
    exec(compile(programs_of("python.md")[2][0], "docs/python.md", "exec"), names)
    x = tern.tensor([1.0, 2.0], dtype=tern.f64, requires_grad=True)
    assert tern.gradcheck(names["Cube"].apply, x) and tern.gradgradcheck(names["Cube"].apply, x)
