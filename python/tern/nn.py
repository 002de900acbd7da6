"""Modules. A class of one's own derives from Module; its attributes that are tensors or modules are its members."""

import collections.abc
import typing

from ._core import Tensor
from ._core._nn import *  # noqa: F403
from ._core._nn import Module as Module, init as init


class ModuleList(Module):
    """Modules in a list that is a module itself, named "0", "1", ...; what is done with them the owner's forward says."""

    def __init__(self, modules: collections.abc.Iterable[Module] = ()) -> None:
        super().__init__()
        self._modules = list(modules)

    def members(self) -> collections.abc.Iterable[tuple[str, Module]]:
        return [(str(i), module) for i, module in enumerate(self._modules)]

    def append(self, module: Module) -> None:
        self._modules.append(module)

    def __len__(self) -> int:
        return len(self._modules)

    def __getitem__(self, index: int) -> typing.Any:
        return self._modules[index]

    def __iter__(self) -> collections.abc.Iterator[typing.Any]:
        return iter(self._modules)


class Sequential(ModuleList):
    """Modules that run one after the other: Sequential(Linear(2, 8), ReLU(), Linear(8, 1))."""

    def __init__(self, *modules: Module) -> None:
        super().__init__(modules)

    def forward(self, x: Tensor) -> Tensor:
        for module in self._modules:
            x = module(x)
        return x
