"""A trained policy to take away: as a small file that needs no JAX, and as a video.

The file is one for NumPy (`.safetensors`, see `pombu.agent.numpy_policy`) or an ONNX
model (`.onnx`) for the many runtimes that take such. Both compute the mean action.
"""

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors.numpy import save

from pombu import __version__
from pombu.agent.numpy_policy import FORMAT, checksum
from pombu.data import Experience
from pombu.envs import Task
from pombu.envs.catalogue import close, in_one_line
from pombu.errors import RunError, UsageError, require_seed
from pombu.files import write_atomic
from pombu.nn import MLP, GaussianPolicy, PlainPolicy, SquashedPolicy
from pombu.training.algorithm import Algorithm, Policy

ONNX_OPSET, ONNX_IR = 17, 8
"""Of 2022, and not newer than that: every operator here is older, and runtimes on
devices are seldom new."""
PREVIEW_FRAMES = 60
PREVIEW_WIDTH = 240


def export_policy(
    path: Path, algorithm: Algorithm[Any], state: Any, about: dict[str, Any]
) -> None:
    """Write the policy's network, its input's units and the action box.

    The same policy gives the same bytes.

    Args:
        path: ends in `.safetensors` or `.onnx`, which says what is written.
        algorithm: whose policy it is.
        state: of the run.
        about: what is known of the policy, kept beside it as JSON.

    Raises:
        UsageError: The state holds no policy network, or the name ends otherwise.
        RunError: The policy has numbers that are not finite.
    """
    writers = {".safetensors": _as_safetensors, ".onnx": _as_onnx}
    if path.suffix not in writers:
        raise UsageError(
            f"{path} ends in {path.suffix or 'nothing'!r}: give a name that ends in "
            ".safetensors, to be read with NumPy, or in .onnx."
        )
    arrays = _arrays(algorithm, state)
    # One entry alone, because the order of several in the file is left to chance.
    seal = {"format": FORMAT, "about": about, "sha256": checksum(arrays, about)}
    write_atomic(path, writers[path.suffix](arrays, json.dumps(seal)))


def about_policy(algorithm: Algorithm[Any], state: Any, seed: int) -> dict[str, Any]:
    """What an exported file says of its policy, and of what goes in and comes out."""
    task = algorithm.task
    box = task.action_box
    about = {
        "algorithm": algorithm.name,
        "environment": task.config.id,
        "seed": seed,
        "real_steps": int(state.real_steps),
        "iteration": int(state.iteration),
        "pombu": __version__,
        "observation_size": task.observation_dim,
        "action": {
            "low": list(box.low),
            "high": list(box.high),
            "shape": list(box.shape or (box.dim,)),
        },
    }
    if task.config.history > 1:
        about["history"] = {"observations": task.config.history, "first": "newest"}
    if task.observation_shape is not None:
        about["observation_shape"] = list(task.observation_shape)
    if task.layout is not None:
        about["observation"] = task.observation_parts
    return about


def _arrays(algorithm: Algorithm[Any], state: Any) -> dict[str, np.ndarray]:
    """All that the policy computes with, as float32.

    A Gaussian policy's log-std is among it; what makes another policy differ (SiLU or
    ReLU layers, tanh after the mean) is an entry of that name.
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
    return plain


def _as_safetensors(arrays: dict[str, np.ndarray], seal: str) -> bytes:
    return save(arrays, {"pombu": seal})


def _as_onnx(arrays: dict[str, np.ndarray], seal: str) -> bytes:
    """The mean action as an ONNX model: observation [batch, o] to action [batch, a].

    Raises:
        UsageError: onnx is not installed.
    """
    try:
        from onnx import TensorProto, helper, numpy_helper
    except ImportError as error:
        raise UsageError(
            "An .onnx file needs onnx: install it with `pip install 'pombu[onnx]'`."
        ) from error
    depth = sum(name.startswith("weight_") for name in arrays)
    # As the policy computes: the box's middle and half are rounded once.
    low, high = arrays["low"], arrays["high"]
    constants = {
        name: array
        for name, array in arrays.items()
        if name.startswith(("observation_", "weight_", "bias_", "low", "high"))
    }
    constants |= {
        "middle": (high + low) / 2,
        "half": (high - low) / 2,
        "least": np.array(-1, np.float32),
        "most": np.array(1, np.float32),
    }
    nodes: list[Any] = []

    def then(operator: str, *inputs: str, to: str) -> str:
        nodes.append(helper.make_node(operator, list(inputs), [to], name=to))
        return to

    x = then("Sub", "observation", "observation_mean", to="centred")
    x = then("Div", x, "observation_std", to="normalised")
    for i in range(depth):
        x = then("Gemm", x, f"weight_{i}", f"bias_{i}", to=f"layer_{i}")
        if i == depth - 1:
            break
        if "silu" in arrays:
            x = then("Mul", x, then("Sigmoid", x, to=f"gate_{i}"), to=f"hidden_{i}")
        else:
            bend = "Relu" if "relu" in arrays else "Tanh"
            x = then(bend, x, to=f"hidden_{i}")
    if "squash" in arrays:
        x = then("Tanh", x, to="squashed")
    x = then("Clip", x, "least", "most", to="within")
    x = then("Add", then("Mul", x, "half", to="scaled"), "middle", to="moved")
    # Rounding may lead past a bound.
    then("Max", then("Min", x, "high", to="below"), "low", to="action")
    sizes = len(arrays["observation_mean"]), len(low)
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", size])
        for name, size in zip(("observation", "action"), sizes, strict=True)
    ]
    weights = [
        numpy_helper.from_array(np.asarray(array, np.float32), name)
        for name, array in sorted(constants.items())
    ]
    graph = helper.make_graph(nodes, "policy", ends[:1], ends[1:], weights)
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", ONNX_OPSET)],
        ir_version=ONNX_IR,
        producer_name="pombu",
        producer_version=__version__,
    )
    helper.set_model_props(model, {"pombu": seal})
    data: bytes = model.SerializeToString(deterministic=True)
    return data


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
            "that learn a policy network can, such as pombu or dhmbpo."
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
    require_seed(seed)
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
        close(env)
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
