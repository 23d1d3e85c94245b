"""A short film of a policy as one piece of text, to be put into a page."""

import base64
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pombu.agent.video import frames, write_video
from pombu.training.algorithm import Algorithm


@dataclass(frozen=True)
class Preview:
    """An animated picture of one episode."""

    uri: str
    """`data:image/gif;base64,...`"""
    episode_return: float
    steps: int


def preview(algorithm: Algorithm[Any], state: Any, seed: int = 0) -> Preview:
    """Film one episode of the deterministic policy."""
    pictures, total, rate = frames(algorithm.task, algorithm.policy(state), seed)
    with tempfile.TemporaryDirectory() as folder:
        picture = write_video(Path(folder) / "film.mp4", pictures, rate)
        text = base64.b64encode(picture.read_bytes()).decode()
    return Preview(f"data:image/gif;base64,{text}", total, len(pictures) - 1)
