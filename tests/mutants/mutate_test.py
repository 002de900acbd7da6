#!/usr/bin/env python3
"""scripts/mutate itself: how it reads a list and finds a text; then a shell script is the source, and running it the test."""
import importlib.machinery
import importlib.util
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "mutate"
SOURCE = "well=yes\n[ $well = yes ] && echo 'All tests passed (1 assertion in 1 test case)'\n"
OLD = "well=yes"
# Tries one mutant of the file "source" in the directory of the first argument; the second is its new text, the third the seconds of a test.
TRY_ONE = f"""
import sys
sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})
import mutate_test
mutate = mutate_test.load()
mutate.TREE = mutate_test.pathlib.Path(sys.argv[1])
mutate.LEAST_TEST_SECONDS = float(sys.argv[3])
mutate.build = lambda target, jobs: (0, "")
mutate.run_test = lambda mutant, seconds: mutate.run(["sh", "-c", (mutate.TREE / mutant.file).read_text()], seconds, cwd=mutate.TREE)
mutate.end_on_signals()
print(*mutate.Runner(1).try_one(mutate.Mutant("list", "name", "source", {OLD!r}, sys.argv[2], "test-x", "case")))
"""


def load():
    loader = importlib.machinery.SourceFileLoader("mutate", str(SCRIPT))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("mutate", loader))
    sys.modules["mutate"] = module
    loader.exec_module(module)
    return module


def is_running(process):
    try:
        return pathlib.Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def comes_true(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


class Mutate(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.tree = pathlib.Path(directory.name)
        (self.tree / "source").write_text(SOURCE)

    def start(self, new, seconds=60.0):
        return subprocess.Popen([sys.executable, "-B", "-c", TRY_ONE, str(self.tree), new, str(seconds)], stdout=subprocess.PIPE, text=True)

    def verdict(self, new, seconds=60.0):
        said = self.start(new, seconds).communicate(timeout=60)[0]
        self.assertEqual((self.tree / "source").read_text(), SOURCE)
        return said.splitlines()[-1]

    def test_a_mutant_is_killed_where_its_test_fails(self):
        self.assertEqual(self.verdict("well=no"), "killed exit code 1")
        self.assertEqual(self.verdict("well=yes # or so").strip(), "lived")

    def test_a_test_that_goes_on_is_ended_and_the_line_says_so(self):
        self.assertIn("killed its test was ended after ", self.verdict("sleep 1000", 0.1))

    def test_a_signal_ends_the_test_too_and_the_text_is_put_back(self):
        process = self.start("echo $$ > running; exec sleep 1000")
        running = self.tree / "running"
        self.assertTrue(comes_true(lambda: running.exists() and running.read_text().endswith("\n")))
        process.terminate()
        self.assertEqual(process.wait(timeout=60), 128 + 15)
        process.stdout.close()
        self.assertEqual((self.tree / "source").read_text(), SOURCE)
        self.assertTrue(comes_true(lambda: not is_running(int(running.read_text()))))


class List(unittest.TestCase):
    mutate = load()

    def read(self, text):
        return self.mutate.read_list(text, pathlib.Path("some.diff"))

    def test_a_list_gives_each_text_with_its_lines_and_their_indentation(self):
        first, second = self.read("# About.\n\n## a.h\nis-one: test-x, Case, with a comma*\n- if (x)\n-   y;\n+\n"
                                  "it's.two: python/x_test, test_y\n- - a\n+ + a\n+\n")
        self.assertEqual(first, self.mutate.Mutant("some", "is-one", "a.h", "if (x)\n  y;", "", "test-x", "Case, with a comma*"))
        self.assertEqual(second, self.mutate.Mutant("some", "it's.two", "a.h", "- a", "+ a\n", "python/x_test", "test_y"))

    def test_a_malformed_list_is_an_error_of_one_line(self):
        for text, said in (("a: test-x, y\n- z\n+\n", "some.diff:1: expected a line ## FILE above a"),
                           ("## a.h\na: test-x, y\n- z\n", "some.diff:4: expected lines of - and then of + below a"),
                           ("## a.h\na: test-x, y\n+ z\n", "some.diff:4: expected lines of - and then of + below a"),
                           ("## a.h\n- z\n", "some.diff:2: expected ## FILE, "), ("## a.h\na: test-x\n", "some.diff:2: expected ## FILE, "),
                           ("## a.h\na: test-x, y\n- z\n+ z\n- z\n", "some.diff:5: expected ## FILE, "),
                           ("## a.h\na: test-x, y\n-z\n", "some.diff:3: ")):
            with self.assertRaises(self.mutate.Mistake) as raised:
                self.read(text)
            self.assertIn(said, str(raised.exception))
            self.assertNotIn("\n", str(raised.exception))

    def test_a_text_that_went_to_another_file_is_said_to_be_there(self):
        texts = self.mutate.source_texts()
        mutant = next(one for one in self.mutate.read_mutants() if sum(one.old in text for text in texts.values()) == 1)
        elsewhere = next(path for path in texts if mutant.old not in texts[path])
        for file in (elsewhere, "src/no.h"):
            moved = self.mutate.dataclasses.replace(mutant, file=file)
            self.assertEqual(self.mutate.fault(moved), f"{file}: the old text has moved to {mutant.file}")
        self.assertEqual(self.mutate.fault(self.mutate.dataclasses.replace(mutant, old=mutant.old + "\0")),
                         f"{mutant.file}: expected the old text once but found it 0 times")


if __name__ == "__main__":
    unittest.main()
