#!/usr/bin/env python3
"""docstrings.py SOURCE OUTPUT: the docstrings of the public headers below SOURCE, as a table in C++ that the extension looks names up in.

A name is what Python says behind `tern.`: `relu`, `nn.Linear`, `train.Optimizer.step`. The headers are the one place where an op is described;
tests/python/coverage_test.py reads them by this file as well, and demands a function of Python for each.
"""

import pathlib
import re
import sys
import textwrap
import typing

ROOMS = ("tensor", "autodiff", "ops", "nn", "train", "io", "models")
DECLARATION = re.compile(r"^(?:template <[^;{]*?> )?(?:(?:inline|static|virtual|explicit|constexpr) )*(?:[\w:<>,&* ]+[&* ])?(operator[^\w\s(]+|~?\w+)\((.*)$")
CLASS = re.compile(r"^(?:template <.*?> )?(?:struct|class|enum class) (\w+)(?: final)?(?: : [^{]*)? \{")


class Entry(typing.NamedTuple):
    name: str
    kind: str  # "function", "class" or "field"
    text: str
    declared: str  # the parameters of a function, the type and name of a field
    header: str


def words(text: str) -> str:
    """C++'s names of things as Python's."""
    text = re.sub(r"\b(?:tern|std)::(?=\w)", "", text)
    text = re.sub(r"\b(\w+)::(?=\w)", lambda m: "" if m[1] == "DType" else m[1] + ".", text)
    text = re.sub(r"set_requires_grad\((true)?\)", "requires_grad_()", text)
    text = re.sub(r"\bundefined tensor\b|\bundefined\b", "None", text)
    return re.sub(r"\{([-\w, ]+)\}", r"(\1)", text)


def reflowed(lines: list[str]) -> str:
    """Paragraphs in lines of a terminal's width; indented ones, which are code, as they are."""
    paragraphs: list[list[str]] = [[]]
    for line in lines:
        if not line.strip():
            paragraphs.append([])
        else:
            paragraphs[-1].append(line)
    result = []
    for part in paragraphs:
        if part:
            result.append("\n".join(part) if part[0].startswith("    ") else textwrap.fill(words(" ".join(part)), 100, break_on_hyphens=False))
    return "\n\n".join(result)


class Reader:
    """Reads one header, whose layout is clang-format's: members of a namespace begin in column 0, those of a class in column 2."""

    def __init__(self, path: pathlib.Path) -> None:
        self.header = path.name
        self.entries: list[Entry] = []
        self.space: list[str] = []
        self.owner = ""  # the class whose members are read
        self.hidden = False  # behind private: or protected:
        self.doc: list[str] = []
        self.group: typing.Optional[list[str]] = None  # the docstring that a /// @{ shares
        self.trailing = ""  # the docstring behind a declaration
        statement = ""
        for line in path.read_text().splitlines():
            if statement or not self.comment(line):
                code, _, comment = re.sub(r'"(\\.|[^"])*"', lambda m: m[0].replace("/", "\\x2f"), line).partition("//")
                self.trailing = comment[2:].strip() if comment.startswith("/<") else ""
                statement = self.statement(statement + " " + code.strip() if statement else line if line.startswith("}") else code.rstrip())

    def comment(self, line: str) -> bool:
        text = line.strip()
        if text.startswith("///<") and self.entries:  # goes on with the line above
            last = self.entries[-1]
            self.entries[-1] = last._replace(text=reflowed([last.text, text[4:].strip()]))
        elif text == "/// @{":
            # Behind @name and @file the docstring is the family's, and not that of the next declaration.
            self.group = []
            self.doc = []
        elif text == "/// @}":
            self.group, self.doc = None, []
        elif text.startswith("///"):
            self.doc.append(text[3:].removeprefix(" "))
            if self.group is not None and not self.entries_since_group():
                self.group = self.doc
        elif text.startswith("//") or text.startswith("#"):
            self.doc = []
        elif not text:
            self.doc = [] if self.group is None else self.doc
        else:
            return False
        return True

    def entries_since_group(self) -> bool:
        return bool(self.group) and self.doc is not self.group

    def taken_doc(self) -> list[str]:
        doc, self.doc = self.doc, []
        if any(re.match(r"@(file|name)\b", line) for line in doc):
            return []
        return doc or self.group or []

    def statement(self, text: str) -> str:
        """Takes a whole declaration; gives back one that goes on."""
        if match := re.match(r"namespace ([\w:]+) \{(\})?", text):
            if not match[2]:
                self.space += match[1].split("::")
            self.doc = []
            return ""
        if match := re.match(r"\}  // namespace ([\w:]+)", text):
            del self.space[-len(match[1].split("::")) :]
            return ""
        if text == "}":
            self.space.pop()
            return ""
        if re.match(r"\};", text):
            self.owner, self.hidden, self.doc, self.group = "", False, [], None
            return ""
        if match := re.match(r" (public|private|protected):", text):
            self.hidden = match[1] != "public"
            return ""
        trailing, self.trailing = self.trailing, ""
        plain = re.sub(r'"(\\.|[^"])*"', '""', text)
        is_class = CLASS.match(text)
        if is_class and not self.owner and "enum" not in is_class[0] and plain.count("{") > plain.count("}"):
            self.add(is_class[1], "class", self.taken_doc(), "")
            self.owner = is_class[1]
            return ""
        closed = all(plain.count(a) == plain.count(b) for a, b in ("()", "{}"))
        if not closed or not re.search(r"[;}]$", plain):
            return text
        doc = [trailing] if trailing else self.taken_doc()
        indent = len(text) - len(text.lstrip())
        if is_class and not self.owner:
            self.add(is_class[1], "class", doc, "")
        elif indent == (2 if self.owner else 0):
            self.declaration(text.strip(), doc)
        return ""

    def declaration(self, text: str, doc: list[str]) -> None:
        if (alias := re.match(r"using (\w+) = (?:\w+<(\w+)>)?", text)) and not self.owner:
            self.add(alias[1], "class", doc, f"const {alias[2]}& options")
        if re.match(r"(using|friend|template struct|extern|static_assert|typedef|enum|requires)\b", text):
            return
        found = DECLARATION.match(text)
        if found and "=" not in text.split("(")[0]:
            depth, end = 1, 0
            for end, c in enumerate(found[2]):  # noqa: B007
                depth += (c in "({") - (c in ")}")
                if depth == 0:
                    break
            self.add(found[1], "function", doc, found[2][:end])
        elif self.owner and (field := re.match(r"(.*[\w>&*]) (\w+)( = .*| *\{.*)?;", text)):
            self.add(field[2], "field", doc, field[1])

    def add(self, name: str, kind: str, doc: list[str], declared: str) -> None:
        if self.space[:1] != ["tern"] or "detail" in self.space or self.hidden or name.startswith("operator"):
            return
        full = ".".join([*self.space[1:], *([self.owner] if self.owner else []), name])
        self.entries.append(Entry(full, kind, reflowed(doc), declared, self.header))


def read(source: pathlib.Path) -> list[Entry]:
    """All declarations of the public headers, in order."""
    return [entry for room in ROOMS for path in sorted((source / room).glob("*.h")) for entry in Reader(path).entries]


def table(entries: list[Entry]) -> dict[str, str]:
    """A text for each name: the first one of overloads; options, which are keywords in Python, below the call that takes them."""
    result: dict[str, str] = {}
    fields: dict[str, list[Entry]] = {}
    for entry in entries:
        if entry.kind == "field":
            fields.setdefault(entry.name.rpartition(".")[0], []).append(entry)
    def taken(declared: str, space: str) -> list[str]:
        lines = []
        for name in re.findall(r"const (\w*(?:Options|Params))& \w+", declared):
            owner = next((o for o in (space + name, name) if o in fields), "")
            for field in fields.get(owner, []):
                if not re.search(r"std::function|\*$", field.declared) and field.text:
                    lines.append(textwrap.fill(field.name.rpartition(".")[2] + ": " + field.text, 100, subsequent_indent="  ", break_on_hyphens=False))
        return lines

    for entry in entries:
        space, _, name = entry.name.rpartition(".")
        owner, _, class_name = space.rpartition(".")
        if entry.kind == "function" and class_name == name:  # a constructor's options belong to the class
            options = taken(entry.declared, owner + "." if owner else "")
            if options and not result[space].endswith(options[-1]):
                result[space] = (result[space] + "\n\n" + "\n".join(options)).strip()
        elif entry.kind != "field" and not result.get(entry.name):
            options = taken(entry.declared, space + "." if space else "")
            result[entry.name] = entry.text + ("\n\n" if options else "") + "\n".join(options)
    return result


def main() -> None:
    source, output = map(pathlib.Path, sys.argv[1:])
    texts = {name: text for name, text in sorted(table(read(source)).items(), key=lambda item: item[0].encode()) if text}
    lines = [f'    {{"{name}", R"doc({text})doc"}},' for name, text in texts.items()]
    output.write_text(
        "// Written by python/docstrings.py from the public headers.\n"
        '#include "docstring.h"\n\n'
        "namespace tern::python {\n\n"
        "const Docstring docstrings[] = {\n" + "\n".join(lines) + "\n};\n"
        f"const std::size_t docstring_count = {len(lines)};\n\n"
        "}  // namespace tern::python\n"
    )


if __name__ == "__main__":
    main()
