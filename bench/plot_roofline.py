#!/usr/bin/env python3
"""Draws the roofline of a device with the depthwise convolutions of `tern-bench conv1d` on it, as an SVG for light and dark pages.

usage: plot_roofline.py OURS.jsonl OUT.svg [PEERS.jsonl]
The roofs are those that the program measured: the bandwidth of a large copy, and the arithmetic of a large f32 product. A point is a forward
pass: FLOP per byte that must move, and FLOP/s. A small signal stays in the cache between calls on a CPU, and lies above the memory's roof.
Williams, Waterman & Patterson, "Roofline", 2009.
"""
import json
import math
import sys
from html import escape

WIDTH, HEIGHT = 760, 460
LEFT, RIGHT, TOP, BOTTOM = 80, 24, 58, 56
# Middle tones, which stand out from white and from black alike.
GREY, BLUE, ORANGE, GREEN = "#7d8590", "#3b82f6", "#ea7317", "#22a352"
COLOURS = {"float32": BLUE, "float16": ORANGE, "bfloat16": GREEN}
PEERS = {"eager": "PyTorch, eager", "compile-shifted": "PyTorch, compiled"}
SIZES = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8}


class Fault(Exception):
    """What is wrong with the user's input, in one line."""


def read(path):
    try:
        with open(path, encoding="utf-8") as lines:
            return [json.loads(line) for line in lines if line.strip()]
    except (OSError, ValueError) as error:
        raise Fault(f"{path}: could not be read: {error}") from None


def point(row):
    """(FLOP per byte, FLOP/s) of a row of a forward pass, ours or a peer's; None for any other row."""
    if row.get("op") not in ("conv1d_fwd", "conv1d_first_fwd") or row.get("dtype") not in SIZES or "ms" not in row:
        return None
    batch, length, channels, taps = row["shape"]
    elements = batch * length * channels
    return taps / SIZES[row["dtype"]], 2 * taps * elements / (row["ms"] / 1e3)


def roofs(rows):
    copies = [row["gbs"] * 1e9 for row in rows if row["op"] == "copy" and "gbs" in row]
    products = [row["tflops"] * 1e12 for row in rows if row["op"] == "product" and "tflops" in row]
    if not copies or not products:
        raise Fault("expected rows of `tern-bench conv1d`: a copy and a product")
    return max(copies), max(products)


def power_of_ten(value):
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value >= size:
            return f"{value / size:g} {unit}FLOP/s"
    return f"{value:g} FLOP/s"


def draw(ours, peers, title):
    bandwidth, peak = roofs(ours)
    mine = [(point(row), row) for row in ours if row.get("impl") == "tern-fused" and point(row)]
    theirs = [(point(row), row) for row in peers if row.get("impl") in PEERS and point(row)]
    if not mine:
        raise Fault("expected forward rows of `tern-bench conv1d`")
    ridge = peak / bandwidth
    low_x, high_x = math.floor(math.log10(min(x for (x, _), _ in mine)) - 0.2), math.ceil(math.log10(ridge) + 0.3)
    low_y = math.floor(math.log10(min(y for (_, y), _ in mine + theirs)))
    high_y = math.ceil(math.log10(peak) + 0.1)

    def at_x(x):
        return LEFT + (math.log10(x) - low_x) / (high_x - low_x) * (WIDTH - LEFT - RIGHT)

    def at_y(y):
        return HEIGHT - BOTTOM - (math.log10(y) - low_y) / (high_y - low_y) * (HEIGHT - TOP - BOTTOM)

    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12" fill="{GREY}">',
           f'<text x="{LEFT}" y="24" font-size="15">{escape(title)}</text>']
    for decade in range(low_x, high_x + 1):
        x = at_x(10**decade)
        svg.append(f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{HEIGHT - BOTTOM}" stroke="{GREY}" stroke-opacity="0.25"/>')
        svg.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{10.0**decade:g}</text>')
    for decade in range(low_y, high_y + 1):
        y = at_y(10**decade)
        svg.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="{GREY}" stroke-opacity="0.25"/>')
        svg.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" font-size="10">{power_of_ten(10.0**decade)}</text>')
    svg.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 14}" text-anchor="middle">FLOP per byte of memory that must move</text>')

    left_x = max(10.0**low_x, 10.0**low_y / bandwidth)
    corners = [(left_x, left_x * bandwidth), (ridge, peak), (10.0**high_x, peak)]
    path = " ".join(f"{at_x(x):.1f},{at_y(y):.1f}" for x, y in corners)
    svg.append(f'<polyline points="{path}" fill="none" stroke="{GREY}" stroke-width="2"/>')
    svg.append(f'<text x="{at_x(10.0**high_x) - 4:.1f}" y="{at_y(peak) - 6:.1f}" text-anchor="end">f32 product: {peak / 1e12:.2f} TFLOP/s</text>')
    start = left_x * 1.3
    svg.append(f'<text x="{at_x(start) + 8:.1f}" y="{at_y(start * bandwidth) + 14:.1f}">copy: {bandwidth / 1e9:.0f} GB/s</text>')

    def mark(kind, dtype, x, y, title=""):
        """A filled disc is ours, a ring ours in bf16, which lies where f16 does; a square is PyTorch's, a diamond compiled."""
        colour = COLOURS.get(dtype, GREY)
        if kind == "tern":
            size, fill = (6, f'fill="none" stroke="{colour}" stroke-width="1.5"') if dtype == "bfloat16" else (4, f'fill="{colour}"')
            return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size}" {fill}>{title}</circle>'
        turn = f' transform="rotate(45 {x:.1f} {y:.1f})"' if kind == "compile-shifted" else ""
        return f'<rect x="{x - 3:.1f}" y="{y - 3:.1f}" width="6" height="6" fill="none" stroke="{colour}"{turn}>{title}</rect>'

    for (x, y), row in theirs:
        title = f'<title>{PEERS[row["impl"]]}, {row["dtype"]} {row["shape"]}: {row["ms"]} ms</title>'
        svg.append(mark(row["impl"], row["dtype"], at_x(x), at_y(y), title))
    for (x, y), row in mine:
        svg.append(mark("tern", row["dtype"], at_x(x), at_y(y), f'<title>tern, {row["dtype"]} {row["shape"]}: {row["ms"]} ms</title>'))
    legend = [("tern", dtype, dtype) for dtype in dict.fromkeys(row["dtype"] for _, row in mine)]
    legend += [(impl, None, name) for impl, name in PEERS.items() if any(row["impl"] == impl for _, row in theirs)]
    x = LEFT + 6
    for kind, dtype, text in legend:
        svg.append(mark(kind, dtype, x, 42) + f'<text x="{x + 10}" y="46">{text}</text>')
        x += 26 + 7 * len(text)
    return "\n".join(svg + ["</svg>"]) + "\n"


def main():
    if len(sys.argv) not in (3, 4):
        print(__doc__.strip(), file=sys.stderr)
        return 2
    try:
        ours = read(sys.argv[1])
        device = next((row["device"] for row in ours if "device" in row), "")
        picture = draw(ours, read(sys.argv[3]) if len(sys.argv) == 4 else [], f"Depthwise convolutions under the roofline ({device})")
        with open(sys.argv[2], "w", encoding="utf-8") as out:
            out.write(picture)
    except (Fault, OSError) as fault:
        print(f"plot_roofline.py: {fault}", file=sys.stderr)
        return 2
    return 0


sys.exit(main())
