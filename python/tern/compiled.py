"""Functions of tensors that run as programs."""

import typing

from ._core import _Programs


class Compiled:
    """A compiled function: see compile."""

    def __init__(self, f: typing.Callable[..., typing.Any], device: typing.Any = None, fuse: bool = True) -> None:
        self._f = f
        self._programs = _Programs(device, fuse)

    def __call__(self, *tensors: typing.Any) -> typing.Any:
        """Calls the function, as written or by its program."""
        return self._programs.call(self._f, *tensors)

    @property
    def programs(self) -> int:
        """Number of programs that are kept, one for each kind of call."""
        return self._programs.size()

    @property
    def runs(self) -> int:
        """Number of calls that ran a program; the others ran as written."""
        return self._programs.runs()

    def forget(self) -> None:
        """Drops all programs."""
        self._programs.forget()

    def report(self) -> str:
        """Text of the programs, for people: a line each."""
        return self._programs.report()

    def show(self, stage: str = "kernels") -> str:
        """The program that ran last: the kernels that the function ran, a line each; the "groups" that run as one; where their "memory" is; or
        their "code" on a GPU."""
        return self._programs.text(stage)


def compile(f: typing.Callable[..., typing.Any], device: typing.Any = None, *, fuse: bool = True) -> Compiled:
    """Compiles a function of tensors on a device that returns a tensor, a tuple or list of them, or None: a step of training, a forward pass.
    Of each kind of call (dtypes and shapes of arguments, modes) two run as written and are noted and compared; later ones run the kernels that
    were noted, without Python. The function must do the same work each time: what changes is kept in a tensor from outside and written in
    place. Results are those as written bit for bit, but for the order of sums that `fuse` joins, and can be differentiated, once for each call;
    call the function under no_grad where no backward pass follows. An Error names what a program could not do again: item(), a number that is
    another one, a tensor that was replaced."""
    return Compiled(f, device, fuse)
