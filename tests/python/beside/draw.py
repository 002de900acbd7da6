"""Draws operands: shapes, dtypes, values and memory layouts of a case, all of them from one number."""

import dataclasses
import math
import random
import typing

import torch

import tern

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
WHOLE = [torch.int32, torch.int64, torch.uint8]
EVERY = [*FLOATS, *WHOLE, torch.bool]
SIZES = [0, 1, 1, 1, 2, 2, 3, 3, 4, 5, 7, 8, 9, 16, 17, 33]


@dataclasses.dataclass
class Operand:
    """A tensor as PyTorch has it. Tern's has the same elements and strides, but those of `mirrored` dimensions are negative."""

    tensor: torch.Tensor
    mirrored: tuple = ()
    differentiable: bool = True
    base: torch.Tensor = None  # of which the tensor is a view, without one itself
    view: typing.Callable = None  # tern's, of the base


def specials(dtype):
    info = torch.finfo(dtype)
    some = [0.0, -0.0, 1.0, -1.0, 0.5, -1.5, 2.0, 3.0, -30.0, math.inf, -math.inf, math.nan, info.max, info.min, info.max / 2, info.smallest_normal]
    return [*some, -info.smallest_normal, info.smallest_normal * info.eps, info.eps, 1 + info.eps, 88.5, -104.0, 20.5, 1e4, math.sqrt(info.max)]


class Draw:
    """What a row asks for its operands. Now and then, as `mistakes` allows, it gets what fits neither library."""

    def __init__(self, seed, dtypes, mistakes=True, firm=False):
        self.random = random.Random(seed)
        self.generator = torch.Generator().manual_seed(self.random.getrandbits(63))
        self.mistakes, self.wild = mistakes, False
        self.dtype = self.random.choice(EVERY if not firm and self.slip() else dtypes)

    def chance(self, p):
        return self.random.random() < p

    def flag(self):
        return self.chance(0.5)

    def slip(self, p=0.015):
        return self.mistakes and self.chance(p)

    def choose(self, *options):
        return self.random.choice(options)

    def whole(self, low, high):
        return self.random.randint(low, high)

    # Shapes.

    def shape(self, least=0, most=4, limit=600):
        dims = self.whole(max(0, least - 1), most + 1) if self.slip() else self.whole(least, most)
        sizes = []
        for _ in range(dims):
            size = self.random.choice(SIZES) if self.chance(0.97) else 130
            sizes.append(size if math.prod(sizes) * size <= limit else self.choose(1, 2))
        self.random.shuffle(sizes)
        return tuple(sizes)

    def full_shape(self, least=0, most=4, limit=600):
        """A shape without a size of 0."""
        return tuple(size or self.choose(1, 2, 6) for size in self.shape(least, most, limit))

    def broadcast(self, count, least=0, most=4):
        whole = self.shape(least, most)
        shapes = []
        for _ in range(count):
            part = [1 if self.chance(0.2) else size for size in whole]
            if self.chance(0.3):
                part = part[self.whole(0, len(part)) :]
            if part and self.slip():
                part[self.whole(0, len(part) - 1)] += 1
            shapes.append(tuple(part) if self.chance(0.7) else whole)
        return shapes

    def dim(self, dims):
        if self.slip():
            return self.choose(dims, -dims - 1, dims + 7)
        return self.whole(-dims, dims - 1) if dims else 0

    def dims(self, dims):
        """Some dimensions, none of them for all."""
        if not dims or self.chance(0.25):
            return ()
        if self.slip():
            return (0, 0) if self.flag() else (dims,)
        return tuple(i - dims if self.flag() else i for i in self.random.sample(range(dims), self.whole(1, dims)))

    # Values.

    def uniform(self, shape, low=0.0, high=1.0):
        return torch.rand(shape, generator=self.generator, dtype=torch.float64) * (high - low) + low

    def normal(self, shape):
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def below(self, shape, bound, low=0):
        """Integers in [low, bound), i64."""
        return torch.randint(low, max(bound, low + 1), tuple(shape), generator=self.generator)

    def floating(self, shape, dtype, kind):
        info = torch.finfo(dtype)
        if kind is None:
            kind = self.random.choices(["normal", "small", "special", "wide", "tiny", "huge", "one"], [35, 15, 25, 10, 5, 5, 5])[0]
        if kind == "tame":
            kind = self.random.choices(["normal", "small", "constant"], [70, 20, 10])[0]
        if kind == "normal":
            return self.normal(shape).to(dtype)
        if kind == "positive":
            return self.uniform(shape, 0.1, 3).to(dtype)
        if kind == "unit":
            return self.uniform(shape).to(dtype)
        if kind == "small":
            x = self.below(shape, 4, -3).to(dtype)
            return torch.where(self.uniform(shape) < 0.5, x, -x)  # zeros of both signs
        if kind == "special":
            values = torch.tensor(specials(dtype), dtype=torch.float64)
            picked = values[self.below(shape, len(values))]
            share = self.choose(0.05, 0.3, 1.0)
            return torch.where(self.uniform(shape) < share, picked, self.normal(shape)).to(dtype)
        if kind == "constant":
            return torch.full(shape, self.choose(0.0, -0.0, 1.0, -1.5, 3.0, 20.5), dtype=torch.float64).to(dtype)
        if kind == "one":
            return torch.full(shape, self.choose(*specials(dtype)), dtype=torch.float64).to(dtype)
        low, high = math.log2(info.smallest_normal * info.eps), math.log2(info.max)
        low, high = {"wide": (low, high), "tiny": (low, low * 0.8), "huge": (high * 0.8, high)}[kind]
        sign = torch.where(self.uniform(shape) < 0.5, -1.0, 1.0).double()
        return (sign * torch.exp2(self.uniform(shape, low, high))).to(dtype)

    def values(self, shape, dtype, kind=None):
        if dtype.is_floating_point:
            return self.floating(shape, dtype, kind)
        if dtype == torch.bool:
            return self.uniform(shape) < self.choose(0.1, 0.5, 0.9)
        if kind in ("positive", "unit"):
            return self.below(shape, 10, 1).to(dtype)
        if kind is None and self.chance(0.1):
            info = torch.iinfo(dtype)
            edges = torch.tensor([info.min, info.max, info.max // 2, 0, 1, 1 if dtype == torch.uint8 else -1], dtype=torch.int64)
            return edges[self.below(shape, len(edges))].to(dtype)
        return self.below(shape, 10, 0 if dtype == torch.uint8 else -9).to(dtype)

    # Operands.

    def tensor(self, shape=None, dtype=None, kind=None, differentiable=True, layouts=True):
        dtype = dtype or self.dtype
        shape = self.shape() if shape is None else tuple(shape)
        return self.laid_out(shape, lambda s: self.values(s, dtype, kind), differentiable, layouts)

    def laid_out(self, shape, fill, differentiable=True, layouts=True):
        layout = self.random.choices(["plain", "transposed", "sliced", "expanded", "mirrored"], [50, 15, 15, 10, 10])[0] if layouts and shape else "plain"
        if layout == "transposed":
            order = list(range(len(shape)))
            self.random.shuffle(order)
            x = fill(tuple(shape[i] for i in order))
            back = [order.index(i) for i in range(len(shape))]
            return Operand(x.permute(back), (), differentiable, x, lambda x: tern.permute(x, back))
        if layout == "sliced":
            at, step, start = self.whole(0, len(shape) - 1), self.whole(1, 3), self.whole(0, 2)
            base = list(shape)
            base[at] = start + base[at] * step
            x = fill(tuple(base))
            return Operand(x[(slice(None),) * at + (slice(start, None, step),)], (), differentiable, x, lambda x: tern.slice(x, at, start, None, step))
        if layout == "expanded":
            at = self.whole(0, len(shape) - 1)
            if shape[at]:
                x = fill(tuple(1 if i == at else size for i, size in enumerate(shape)))
                return Operand(x.expand(shape), (), differentiable, x, lambda x: tern.expand(x, shape))
        mirrored = tuple(i for i in range(len(shape)) if self.flag()) if layout == "mirrored" else ()
        return Operand(fill(tuple(shape)), mirrored, differentiable)

    def given(self, tensor, differentiable=False, layouts=True):
        """An operand with these elements, in a memory layout of its own."""
        if not layouts or not tensor.dim() or not self.chance(0.3):
            return Operand(tensor, (), differentiable)
        if self.flag():
            return Operand(tensor, tuple(i for i in range(tensor.dim()) if self.flag()), differentiable)
        wide = torch.stack([tensor, tensor], -1)
        return Operand(wide[..., 0], (), differentiable, wide, lambda x: tern.select(x, -1, 0))

    def weights(self, shape, dtype):
        """The factor of a result in a gradient: what comes from the ops behind."""
        x = self.normal(shape)
        if self.chance(0.15):
            x = torch.where(self.uniform(shape) < 0.3, torch.zeros(()), x)
        if self.wild and self.chance(0.1):
            x = torch.where(self.uniform(shape) < 0.3, self.choose(math.inf, -math.inf, math.nan), x)
        return x.to(dtype)
