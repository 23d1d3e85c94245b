"""The experiment's numbers: Appendix D.1 of the paper where it gives them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PointSettings:
    """One run of the calibration experiment."""

    environments: tuple[str, ...] = ("Point2D", "Point3D")
    """Tasks."""
    datasets: int = 5
    """Independent repetitions: policy, data, models, value function and starts."""
    seed: int = 0
    """What everything random is drawn from."""
    start_states: int = 5000
    """States whose Q-value is judged, with the policy's action."""
    policy_hidden: tuple[int, ...] = (64, 64)
    """Layers of the random deterministic policy (the paper does not give them)."""
    real_trajectories: int = 3000
    """Real trajectories that the models learn from."""
    exploration_std: float = 1.0
    """Noise on the policy's action while data is collected, in units of the action
    bound, as in an untrained Gaussian policy (the paper does not say)."""
    members: int = 5
    """K."""
    model_hidden: tuple[int, ...] = (64, 64)
    """Layers of each model."""
    model_batch: int = 500
    """Rows per gradient step of a model."""
    model_learning_rate: float = 2e-4
    """Adam's step size for the models."""
    model_epochs: int = 10_000
    """Most epochs of a model; it stops earlier, 25 epochs after its best validation."""
    value_hidden: tuple[int, ...] = (32, 32)
    """Layers of the value function."""
    virtual_trajectories: int = 100
    """Fresh imagined trajectories per value epoch."""
    value_batch: int = 200
    """Samples per gradient step of the value function."""
    value_learning_rate: float = 5e-5
    """Adam's step size for the value function."""
    value_epochs: tuple[int, ...] = (0, 5, 10, 15)
    """After how many value epochs the literal setting is judged."""
    flat_pool: int = 10_000
    """Imagined trajectories from which training until flat draws its epochs."""
    flat_learning_rate: float = 1.6e-3
    """Adam's step size when training until flat begins; it is halved whenever the loss
    is flat, down to the step size of the literal setting."""
    flat_window: int = 200
    """Epochs per window of training until flat."""
    flat_gain: float = 0.03
    """The loss is flat when a window lowers it by less than this share."""
    flat_limit: int = 20_000
    """Most epochs of training until flat."""
    rollouts: int = 20
    """Imagined trajectories per start state (published code): their mean return is the
    Q-value, and their mean D the squared uncertainty."""


PROFILES = {
    "smoke": PointSettings(
        datasets=2,
        start_states=60,
        real_trajectories=40,
        model_epochs=5,
        flat_pool=500,
        flat_window=5,
        flat_limit=10,
        rollouts=2,
    ),
    "fast": PointSettings(datasets=2, start_states=1000, real_trajectories=500),
    "paper": PointSettings(),
}
