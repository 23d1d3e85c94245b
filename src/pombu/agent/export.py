"""A trained policy to take away: as a small file that needs no JAX, and as a video."""

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors.numpy import save

from pombu.agent.numpy_policy import FORMAT, checksum
from pombu.data import Experience
from pombu.envs import Task
from pombu.envs.catalogue import in_one_line
from pombu.errors import RunError, UsageError
from pombu.files import write_atomic
from pombu.nn import MLP, GaussianPolicy, PlainPolicy, SquashedPolicy
from pombu.training.algorithm import Algorithm, Policy

PREVIEW_FRAMES = 60
PREVIEW_WIDTH = 240


def export_policy(
    path: Path, algorithm: Algorithm[Any], state: Any, about: dict[str, Any]
) -> None:
    """Write the policy's network, its input's units and the action box.

    A Gaussian policy's log-std is written too; what makes another policy differ (SiLU
    or ReLU layers, tanh after the mean) is an entry of that name.
    `pombu.agent.numpy_policy` reads it back in a few lines of NumPy.

    Raises:
        UsageError: The state holds no policy network.
        RunError: The policy has numbers that are not finite.
    """
    policy, box = _plain_policy(algorithm, state), algorithm.task.action_box
    arrays = {
        "observation_mean": policy.observation_mean,
        "observation_std": policy.observation_std,
        "low": np.asarray(box.low),
        "high": np.asarray(box.high),
    }
    if policy.log_std is not None:
        arrays["log_std"] = policy.log_std
    if policy.squash:
        arrays["squash"] = np.ones(1)
    if policy.mean.activation != "tanh":
        arrays[policy.mean.activation] = np.ones(1)
    for i, (weight, bias) in enumerate(
        zip(policy.mean.weights, policy.mean.biases, strict=True)
    ):
        arrays[f"weight_{i}"] = np.asarray(weight)
        arrays[f"bias_{i}"] = np.asarray(bias)
    plain = {
        name: np.ascontiguousarray(array, np.float32) for name, array in arrays.items()
    }
    if bad := [name for name, array in plain.items() if not np.isfinite(array).all()]:
        raise RunError(
            f"The policy has numbers that are not finite ({bad[0]}), so it was not "
            "exported: export another checkpoint."
        )
    # One entry alone, because the order of several in the file is left to chance.
    seal = {"format": FORMAT, "about": about, "sha256": checksum(plain, about)}
    write_atomic(path, save(plain, {"pombu": json.dumps(seal)}))


def _plain_policy(algorithm: Algorithm[Any], state: Any) -> PlainPolicy:
    """The policy network of a state, as its learner or its kind says."""
    own = getattr(algorithm, "plain_policy", None)
    if own is not None:
        taken: PlainPolicy = own(state)
        return taken
    policy = getattr(state, "policy", None)
    experience = getattr(state, "experience", None)
    if not (
        isinstance(policy, GaussianPolicy | SquashedPolicy)
        and isinstance(experience, Experience)
    ):
        raise UsageError(
            f"A {algorithm.name} policy cannot be exported: only those of algorithms "
            "that learn a policy network can, such as pombu."
        )
    units = (experience.observation.mean, experience.observation.std)
    if isinstance(policy, GaussianPolicy):
        return PlainPolicy(policy.mean, *units, np.asarray(policy.log_std))
    net = policy.network
    actions = net.biases[-1].shape[0] // 2
    mean = MLP(
        (*net.weights[:-1], net.weights[-1][:, :actions]),
        (*net.biases[:-1], net.biases[-1][:actions]),
        net.activation,
    )
    return PlainPolicy(mean, *units, squash=True)


def frames(
    task: Task, policy: Policy, seed: int, deterministic: bool = True
) -> tuple[list[np.ndarray], float, int]:
    """Render one episode; gives its frames, its return and its frames per second."""
    try:
        env = task.make(render_mode="rgb_array")
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"{task.config.id} cannot be recorded ({error}): its environment must "
            "render rgb_array."
        ) from error
    key = jax.random.key(seed)
    try:
        observation, _ = _asked(env.reset, seed=seed)
        pictures, total, step, over = [_picture(env)], 0.0, 0, False
        while not over:
            rows = np.asarray(observation, np.float32)[None]
            drawn = policy(rows, deterministic, jax.random.fold_in(key, step))
            boxed = task.action_box.to_box(np.asarray(drawn)[0])
            action = task.action_box.to_env(boxed)
            observation, reward, terminated, truncated, _ = _asked(env.step, action)
            pictures.append(_picture(env))
            total += float(reward)
            step += 1
            over = terminated or truncated
    finally:
        env.close()
    rate = int(env.metadata.get("render_fps") or 30)
    return pictures, total, rate


def _asked(method: Callable[..., Any], *given: Any, **named: Any) -> Any:
    """What the environment answers; its faults are not pombu's."""
    try:
        return method(*given, **named)
    except Exception as error:
        raise RunError(
            f"The environment raised {in_one_line(error)} in {method.__name__}: it has "
            "to be fixed there."
        ) from error


def _picture(env: Any) -> np.ndarray:
    try:
        picture = env.render()
    except Exception as error:
        raise UsageError(
            f"The environment cannot be recorded ({in_one_line(error)}): it must have "
            "the render mode rgb_array, a factory must take render_mode and pass it "
            "on, and what it renders with must be installed."
        ) from error
    if picture is None:
        raise RunError(
            "The environment rendered nothing: its factory must take render_mode and "
            "render rgb_array."
        )
    return np.asarray(picture, np.uint8)


def write_video(path: Path, pictures: list[np.ndarray], rate: int) -> Path:
    """Write an mp4 and, beside it, an animated preview; gives the preview's path.

    Raises:
        UsageError: imageio is not installed.
    """
    try:
        import imageio.v2 as imageio
    except ImportError as error:
        raise UsageError(
            "A video needs imageio: install it with `pip install 'pombu[report]'`."
        ) from error
    path.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        # JAX warns of every fork; ffmpeg's child only executes another program.
        warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
        _encode(imageio, path, pictures, rate)
    every = max(len(pictures) // PREVIEW_FRAMES, 1)
    shrink = max(pictures[0].shape[1] // PREVIEW_WIDTH, 1)
    small: list[Any] = [p[::shrink, ::shrink] for p in pictures[::every]]
    preview = path.with_suffix(".gif")
    imageio.mimsave(preview, small, duration=1000 * every / rate, loop=0)
    return preview


def _encode(imageio: Any, path: Path, pictures: list[np.ndarray], rate: int) -> None:
    with imageio.get_writer(path, fps=rate, macro_block_size=2) as writer:
        for picture in pictures:
            writer.append_data(picture)
