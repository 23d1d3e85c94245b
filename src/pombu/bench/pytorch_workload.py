"""The workload's hot loops in PyTorch, ready to be timed beside the engine's."""

import time
from typing import cast

import numpy as np
import torch

from pombu.bench.pytorch import (
    Samples,
    TorchDynamics,
    TorchEnsemble,
    TorchPolicy,
    fit_ensemble,
    imagine,
    improve_policy,
    improve_value,
    network,
    tensor,
)
from pombu.bench.workload import Work, Workload
from pombu.data import build_dataset, regression
from pombu.nn import MLP
from pombu.parallel import usable_cores


def pieces(work: Workload) -> dict[str, Work]:
    """Imagination, fit and update, each with the number of threads that suits it."""
    return {
        "imagination": with_best_threads(_imagination(work)),
        "fit": with_best_threads(_fit(work)),
        "update": with_best_threads(_update(work)),
    }


def with_best_threads(piece: Work) -> Work:
    """Small products are faster on one thread, large ones on all: try both."""
    torch.set_num_threads(1)
    piece()
    spent = {}
    for threads in {1, usable_cores()}:
        torch.set_num_threads(threads)
        start = time.perf_counter()
        piece()
        spent[threads] = time.perf_counter() - start
    best = min(spent, key=spent.__getitem__)

    def run() -> object:
        torch.set_num_threads(best)
        return piece()

    return run


def _imagination(work: Workload) -> Work:
    state, rules = work.state, work.rules
    policy, value = TorchPolicy(state.policy), network(cast(MLP, state.value))
    dynamics, starts = TorchDynamics.of(work.dynamics), tensor(work.starts)
    shape = (rules.horizon, len(starts))

    def piece() -> object:
        noise = torch.randn(*shape, policy.log_std.shape[0])
        chosen = torch.randint(work.dynamics.members.count, shape)
        return imagine(policy, value, dynamics, rules, starts, noise, chosen)

    return piece


def _fit(work: Workload) -> Work:
    """Includes what the engine's fit does: stacking, splitting and normalising rows."""
    config, steps = work.config.model, work.fit_steps
    interval = config.validate_every_steps or steps

    def piece() -> object:
        dataset = build_dataset(
            work.episodes, config.members, config.validation_fraction, 0, 0
        )
        inputs, targets = regression(dataset, work.state.experience, False)
        training = [np.flatnonzero(~mask) for mask in dataset.validation]
        untouched = [np.flatnonzero(mask) for mask in dataset.validation]
        rows = torch.stack(
            [_rows(known, steps, config.batch_size) for known in training]
        )
        held_out = torch.stack(
            [_held_out(rows, config.validation_rows) for rows in untouched]
        )
        return fit_ensemble(
            TorchEnsemble(work.state.ensemble),
            tensor(inputs),
            tensor(targets),
            rows.transpose(0, 1),
            held_out,
            config,
            interval,
        )

    return piece


def _rows(known: np.ndarray, steps: int, size: int) -> torch.Tensor:
    """[steps, size] rows: one shuffled epoch after the other."""
    epochs = -(-steps * size // len(known))
    order = torch.cat([torch.randperm(len(known)) for _ in range(epochs)])
    return torch.from_numpy(known)[order[: steps * size]].reshape(steps, size)


def _held_out(rows: np.ndarray, most: int) -> torch.Tensor:
    return torch.from_numpy(rows)[torch.randperm(len(rows))[:most]]


def _update(work: Workload) -> Work:
    state, config = work.state, work.config
    batch = Samples.of(work.batch)

    def orders(epochs: int) -> torch.Tensor:
        size = len(batch.weight)
        return torch.stack([torch.randperm(size) for _ in range(epochs)])

    def piece() -> object:
        policy, value = TorchPolicy(state.policy), network(cast(MLP, state.value))
        improve_value(value, batch, orders(config.value.epochs), config.value)
        improve_policy(
            policy, batch, orders(config.policy.epochs), config.alpha, config.policy
        )
        return policy

    return piece
