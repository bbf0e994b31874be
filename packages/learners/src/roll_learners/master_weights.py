"""float32 copies of half-precision parameters: what the optimizer updates."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from roll_learners.errors import LearnerError

HALF = (torch.bfloat16, torch.float16)


class MasterWeights:
    """Takes the gradients of half-precision parameters as they come, and gives back the updated values.

    A gradient leaves its parameter for the copy after every backward, so that micro-batches are summed in
    float32 and no half-precision gradient is kept.
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Args:
        parameters: Of a model; those in float32 or wider are their own masters.
        """
        self.masters: list[torch.nn.Parameter] = []
        self._pairs: list[tuple[torch.nn.Parameter, torch.nn.Parameter]] = []
        for parameter in parameters:
            master = parameter
            if parameter.dtype in HALF:
                master = torch.nn.Parameter(parameter.detach().float())
                self._pairs.append((parameter, master))
                # torch leaves the method untyped.
                parameter.register_post_accumulate_grad_hook(_Mover(master))  # type: ignore[no-untyped-call]
            self.masters.append(master)

    def publish(self) -> None:
        """Writes the masters' values into the model, rounded."""
        with torch.no_grad():
            for parameter, master in self._pairs:
                parameter.copy_(master)

    def state(self) -> list[Tensor]:
        """The copies, live; empty if the model has no half-precision parameter."""
        return [master.detach() for _, master in self._pairs]

    def load(self, values: Sequence[Tensor]) -> None:
        """Takes on the values of `state`.

        Raises:
            LearnerError: They are not of these parameters.
        """
        own = [tuple(master.shape) for _, master in self._pairs]
        given = [tuple(value.shape) for value in values]
        if own != given:
            raise LearnerError(
                f"learner state has {len(given)} master weights, the model has {len(own)} half-precision "
                "parameters, or their shapes differ: load the state with the model's dtype it was saved with"
            )
        with torch.no_grad():
            for (_, master), value in zip(self._pairs, values, strict=True):
                master.copy_(value)
        self.publish()


class _Mover:
    """Adds a parameter's gradient to its master's."""

    def __init__(self, master: torch.nn.Parameter) -> None:
        self._master = master

    def __call__(self, parameter: Tensor) -> None:
        gradient = parameter.grad
        if gradient is None:
            return
        if self._master.grad is None:
            self._master.grad = gradient.float()
        else:
            self._master.grad += gradient
        parameter.grad = None
