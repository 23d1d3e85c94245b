"""Videos of a policy: one real episode as mp4 and as an animated preview."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pombu.envs import Task
from pombu.envs.catalogue import in_one_line
from pombu.errors import RunError, UsageError
from pombu.training.algorithm import Policy

PREVIEW_FRAMES = 60
PREVIEW_WIDTH = 240


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
