"""The files of the repository, for the checks of this directory."""
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
CPP = (".h", ".cpp", ".cu", ".cuh")


def files(*patterns):
    """Paths from the root, sorted: what git knows or would add, and is there. Of the patterns alone, where there are some."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", *patterns]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return [path for path in sorted(set(listed.stdout.split("\0"))) if path and (ROOT / path).exists()]


def sources(rooms, endings=CPP):
    """The sources in directories of the root."""
    return files(*(f"{room}/*{ending}" for room in rooms for ending in endings))


def end(faults, expected, is_well):
    """Prints what a check has found, and ends it: with the faults, a line each, and what was expected; or with the line that all is well."""
    if faults:
        print(*faults, sep="\n", file=sys.stderr)
        sys.exit(f"error: expected {expected}")
    print(is_well)
