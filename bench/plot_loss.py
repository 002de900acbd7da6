#!/usr/bin/env python3
"""Draws a training run's losses, and its validation BLEU where it was taken, as an SVG for light and dark pages.

usage: plot_loss.py RUN OUT.svg [TITLE]
RUN is a run directory of tern-translate, or its log.jsonl.
"""
import json
import math
import os
import sys
from html import escape

WIDTH, HEIGHT = 760, 380
LEFT, RIGHT, TOP, BOTTOM = 64, 64, 58, 52
MOST_POINTS = 400  # of a line: more cannot be seen at this width, and would only make the file large
# Middle tones, which stand out from white and from black alike.
GREY, BLUE, ORANGE, GREEN = "#7d8590", "#3b82f6", "#ea7317", "#22a352"


class Fault(Exception):
    """What is wrong with the user's input, in one line."""


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def read(path):
    """The series of a log: lists of (update, value) for the training loss, the validation loss and BLEU."""
    if os.path.isdir(path):
        path = os.path.join(path, "log.jsonl")
    train, valid, bleu = [], [], []
    try:
        with open(path, encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                try:
                    row = json.loads(line)
                except ValueError:
                    raise Fault(f"{path}:{number}: expected a JSON object a line") from None
                if not isinstance(row, dict) or not is_number(row.get("update")):
                    raise Fault(f"{path}:{number}: expected an object with the number of an update")
                for key, series in (("loss", train), ("valid_loss", valid), ("valid_bleu", bleu)):
                    if is_number(row.get(key)):
                        series.append((row["update"], row[key]))
    except UnicodeDecodeError:
        raise Fault(f"{path}: expected UTF-8") from None
    except OSError as error:
        raise Fault(f"{path}: could not be read: {error.strerror}") from None
    if len(train) + len(valid) < 2:
        raise Fault(f"{path}: expected two losses at least but got {len(train) + len(valid)}")
    return train, valid, bleu


def thin(points):
    """Means of neighbours, few enough to draw."""
    group = math.ceil(len(points) / MOST_POINTS)
    chunks = [points[i : i + group] for i in range(0, len(points), group)]
    return [(sum(x for x, _ in chunk) / len(chunk), sum(y for _, y in chunk) / len(chunk)) for chunk in chunks]


def ticks(high, count=None):
    """Round numbers from 0 to the first that is not below `high`: `count` of them, or about six."""
    high = high if high > 0 else 1
    power = 10.0 ** math.floor(math.log10(high / (count - 1 if count else 5)))
    steps = [factor * power for factor in (1, 2, 2.5, 5, 10)]
    if count:
        step = next(step for step in steps if step * (count - 1) >= high)
    else:
        step = min(steps, key=lambda step: abs(high / step - 5))
        count = math.ceil(high / step - 1e-9) + 1
    return [i * step for i in range(count)]


def text(x, y, words, anchor="middle", more=""):
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{more}>{escape(words)}</text>'


def draw(train, valid, bleu, title):
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    x_end = max(x for x, _ in train + valid + bleu)
    loss_ticks = ticks(max(y for _, y in train + valid))
    bleu_ticks = ticks(max(y for _, y in bleu), len(loss_ticks)) if bleu else []  # on the same lines

    def place(points, top):
        return [(LEFT + x / x_end * (right - LEFT), bottom - y / top * (bottom - TOP)) for x, y in points]

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" '
        f'font-family="Helvetica, Arial, sans-serif" font-size="12" fill="{GREY}">',
        f"<title>{escape(title)}</title>",
        text(LEFT, 22, title, "start", ' font-size="15"'),
        f'<g stroke="{GREY}" stroke-width="1">',
    ]
    for value in loss_ticks:
        y = place([(0, value)], loss_ticks[-1])[0][1]
        out.append(f'<path d="M{LEFT} {y:.1f}H{right}" stroke-opacity="{1 if value == 0 else 0.25}"/>')
    x_ticks = [value for value in ticks(x_end) if value <= x_end]
    for value in x_ticks:
        x = LEFT + value / x_end * (right - LEFT)
        out.append(f'<path d="M{x:.1f} {bottom}v5"/>')
    out.append("</g>")
    for value in loss_ticks:
        out.append(text(LEFT - 8, place([(0, value)], loss_ticks[-1])[0][1] + 4, f"{value:g}", "end"))
    for value in bleu_ticks:
        out.append(text(right + 8, place([(0, value)], bleu_ticks[-1])[0][1] + 4, f"{value:g}", "start"))
    for value in x_ticks:
        out.append(text(LEFT + value / x_end * (right - LEFT), bottom + 19, f"{value:,.0f}"))
    middle = (TOP + bottom) / 2
    out.append(text((LEFT + right) / 2, HEIGHT - 12, "update"))
    out.append(text(18, middle, "loss, nats a token", more=f' transform="rotate(-90 18 {middle:g})"'))
    if bleu:
        out.append(text(WIDTH - 14, middle, "BLEU", more=f' transform="rotate(90 {WIDTH - 14} {middle:g})"'))

    legend = LEFT
    for points, top, colour, name, marks in (
        (thin(train), loss_ticks[-1], BLUE, "training loss", False),
        (thin(valid), loss_ticks[-1], ORANGE, "validation loss", True),
        (thin(bleu), bleu_ticks[-1] if bleu else 1, GREEN, "validation BLEU (right)", True),
    ):
        if not points:
            continue
        placed = place(points, top)
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in placed)
        out.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="{2 if marks else 1.5}" stroke-linejoin="round"/>')
        if marks:
            dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in placed[:60])
            out.append(f'<g fill="{colour}">{dots}</g>')
        out.append(f'<path d="M{legend} 40h22" stroke="{colour}" stroke-width="3"/>')
        out.append(text(legend + 28, 44, name, "start"))
        legend += 48 + 7 * len(name)
    out.append("</svg>")
    return "\n".join(out) + "\n"


def main(arguments):
    if arguments in (["-h"], ["--help"]):
        print(__doc__.strip())
        return
    if len(arguments) not in (2, 3):
        raise Fault("usage: plot_loss.py RUN OUT.svg [TITLE]")
    title = arguments[2] if len(arguments) == 3 else "Training a translator with tern"
    picture = draw(*read(arguments[0]), title)
    try:
        with open(arguments[1], "w", encoding="utf-8") as out:
            out.write(picture)
    except OSError as error:
        raise Fault(f"{arguments[1]}: could not be written: {error.strerror}") from None


try:
    main(sys.argv[1:])
except Fault as fault:
    print(f"plot_loss.py: {fault}", file=sys.stderr)
    sys.exit(2)
