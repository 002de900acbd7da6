"""Ops with a gradient of one's own."""

import typing

from ._core import Tensor, _apply_function


class Context:
    """What the forward of a Function leaves for its backward: the tensors of save_for_backward, and any attributes."""

    needs_input_grad: tuple[bool, ...] = ()
    """For each argument of forward, whether its gradient is asked for."""

    _saved: typing.Optional[tuple[typing.Optional[Tensor], ...]] = ()

    def save_for_backward(self, *tensors: typing.Optional[Tensor]) -> None:
        """Keeps inputs, outputs or other tensors, with their history, and notices if they are edited in place. An output that is kept as an
        attribute instead has no history, so that the gradient cannot be differentiated again."""
        self._saved = tensors

    @property
    def saved_tensors(self) -> tuple[Tensor, ...]:
        """The tensors of save_for_backward, in backward."""
        if self._saved is None:
            raise RuntimeError("saved_tensors are there while backward runs")
        return typing.cast("tuple[Tensor, ...]", self._saved)


class Function:
    """An op with a gradient of one's own, by apply:

        class Cube(tern.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x * x * x

            @staticmethod
            def backward(ctx, grad):
                (x,) = ctx.saved_tensors
                return 3 * x * x * grad

        y = Cube.apply(x)

    forward takes any arguments, is not recorded, and returns a tensor or a tuple of tensors. backward gets a gradient for each of them, zeros if
    none arrived, and returns one for each argument of forward, None for those that are no tensors. If it is written in ops of tern it can be
    differentiated again. One that is computed otherwise, with NumPy say, sets `once_differentiable = True` in the class.
    """

    once_differentiable: typing.ClassVar[bool] = False

    @staticmethod
    def forward(ctx: Context, *args: typing.Any) -> typing.Any:
        raise NotImplementedError("a Function has a forward(ctx, ...)")

    @staticmethod
    def backward(ctx: Context, *grads: Tensor) -> typing.Any:
        raise NotImplementedError("a Function has a backward(ctx, grad), which returns a gradient for each argument of forward")

    @classmethod
    def apply(cls, *args: typing.Any) -> typing.Any:
        """forward of the arguments, recorded."""
        return _apply_function(cls, Context(), *args)
