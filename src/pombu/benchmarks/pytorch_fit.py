"""The ensemble's fit written plainly in PyTorch, all members in one batched step."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pombu import models
from pombu.benchmarks.pytorch import tensor
from pombu.config import ModelConfig
from pombu.errors import UsageError
from pombu.models.ensemble import PUBLISHED, WeightNorm


class Ensemble(nn.Module):
    """Weight-normalised members, stacked along the first axis."""

    def __init__(self, ensemble: models.Ensemble) -> None:
        super().__init__()
        layers = [one for one in ensemble.layers if isinstance(one, WeightNorm)]
        if ensemble.form != PUBLISHED:
            raise UsageError(
                "The reference in PyTorch knows members with weight normalisation and "
                "ReLU alone: leave model.normalisation and model.activation out."
            )
        self.directions = _parameters([layer.direction for layer in layers])
        self.gains = _parameters([layer.gain for layer in layers])
        self.biases = _parameters([layer.bias for layer in layers])

    def forward(self, x: Tensor) -> Tensor:
        """Normalised state changes, [K, n, o], of every member's own rows [K, n, i]."""
        last = len(self.biases) - 1
        layers = zip(self.directions, self.gains, self.biases, strict=True)
        for number, (direction, gain, bias) in enumerate(layers):
            norm = torch.linalg.vector_norm(direction, dim=1)
            weight = direction * (gain / norm)[:, None]
            x = torch.baddbmm(bias[:, None], x, weight)
            if number < last:
                x = x.relu()
        return x


def _parameters(arrays: Sequence[object]) -> nn.ParameterList:
    return nn.ParameterList([nn.Parameter(tensor(array)) for array in arrays])


def fit(
    ensemble: Ensemble,
    inputs: Tensor,
    targets: Tensor,
    rows: Tensor,
    held_out: Tensor,
    config: ModelConfig,
    interval: int,
) -> Tensor:
    """Train in place, keep the weights that validated best, and give those losses [K].

    Args:
        ensemble: where to start from.
        inputs: [n, i] normalised states and actions.
        targets: [n, o] normalised state changes.
        rows: [steps, K, b] which rows each member learns from at each step.
        held_out: [K, v] which rows each member is validated on.
        config: learning rate and gradient clip.
        interval: steps between validations.
    """
    parameters = list(ensemble.parameters())
    optimiser = torch.optim.Adam(parameters, config.learning_rate, fused=True)
    best = [parameter.detach().clone() for parameter in parameters]
    best_loss = torch.full((len(held_out),), torch.inf)
    for step, batch in enumerate(rows, 1):
        optimiser.zero_grad()
        torch.autograd.backward(_loss(ensemble, inputs, targets, batch).sum())
        _clip(parameters, config.gradient_clip)
        optimiser.step()
        if step % interval == 0:
            with torch.no_grad():
                loss = _loss(ensemble, inputs, targets, held_out)
                better = loss <= best_loss
                best_loss = torch.where(better, loss, best_loss)
                for kept, parameter in zip(best, parameters, strict=True):
                    kept[better] = parameter[better]
    with torch.no_grad():
        for kept, parameter in zip(best, parameters, strict=True):
            parameter.copy_(kept)
    return best_loss


def _loss(ensemble: Ensemble, inputs: Tensor, targets: Tensor, rows: Tensor) -> Tensor:
    """Each member's mean squared error over its rows."""
    predicted: Tensor = ensemble(inputs[rows])
    return (predicted - targets[rows]).square().mean((1, 2))


def _clip(parameters: Sequence[nn.Parameter], largest: float) -> None:
    """Bound each member's own global gradient norm."""
    gradients = [
        parameter.grad for parameter in parameters if parameter.grad is not None
    ]
    norms = [torch.linalg.vector_norm(g.flatten(1), dim=1) for g in gradients]
    norm = torch.linalg.vector_norm(torch.stack(norms), dim=0)
    scale = (largest / norm).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(scale.reshape((-1,) + (1,) * (gradient.ndim - 1)))
