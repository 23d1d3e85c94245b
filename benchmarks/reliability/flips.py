"""Flips: one bit of one file of a run, and then a command that reads the run.

A flip must be recovered from, refused, or harmless. Silent is what gives another answer
than the undamaged run without a word.
"""

import json
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.reliability.trial import Answer, Count, call, command, files_of
from pombu.agent.numpy_policy import load_policy
from pombu.data import read_logged, write_logged
from pombu.envs import load
from pombu.errors import UsageError
from pombu.training import checkpoint
from pombu.training.metrics import deterministic, read_rows

FLIPS = 1050
STEPS = 60
"""Real steps of the run, in three iterations."""
Place = tuple[str, Path, Path]
"""What reads it, the folder, and the file in it whose bit is flipped."""
IGNORED = ("lock", "report.html")


def flipped(share: float) -> Count:
    """Flip bits in a finished and in an interrupted run of POMBU."""
    count = Count("flipped bits")
    draw = random.Random(2)
    with tempfile.TemporaryDirectory() as scratch:
        sources = [Path(scratch) / name for name in ("finished", "stopped", "taken")]
        _train(sources[0])
        _interrupt(*sources[:2])
        _take(sources[0], sources[2])
        for number, (kind, source, file) in enumerate(_places(*sources)):
            if number >= FLIPS * share:
                break
            folder = Path(scratch) / "run"
            shutil.copytree(source, folder)
            place = _flip(folder / file, draw)
            what = f"{kind} after {source.name}/{file}, {place}"
            expected = _expected(kind, source, file, Path(scratch))
            answer, found = READERS[kind](folder, file)
            count.add(outcome(answer, found, expected), f"{what}: {answer.said[-300:]}")
            shutil.rmtree(folder)
    return count


def outcome(answer: Answer, found: Any, expected: Any) -> str:
    """What a command on damaged files counts as."""
    if answer.kind:
        return answer.kind
    if answer.code:
        return "refused"
    if found != expected:
        # It may have said that it goes on without what is damaged.
        return "silent" if "damaged" not in answer.said else "recovered"
    return "recovered" if "damaged" in answer.said else "harmless"


def _train(folder: Path) -> None:
    flags = ["--env", "Point2D", "--horizon", "10", "--preset", "smoke"]
    answer = command(
        ["train", *flags, "--total-steps", str(STEPS), "--out", str(folder)]
    )
    if answer.code or answer.kind:
        raise RuntimeError(answer.said)


def _interrupt(finished: Path, folder: Path) -> None:
    """The same run as it was after two iterations."""
    shutil.copytree(finished, folder)
    last = checkpoint.paths(folder)[-1]
    shutil.rmtree(last)
    (folder / "evaluation.json").unlink()


def _take(finished: Path, folder: Path) -> None:
    """What somebody takes from a run: its policy, and its episodes as a file."""
    folder.mkdir()
    command(["export", str(finished), str(folder / "policy.safetensors")])
    task = load("Point2D", horizon=10)
    write_logged(folder / "logged.npz", read_logged(finished, task))


def _places(finished: Path, stopped: Path, taken: Path) -> Iterator[Place]:
    """Every file with every command, over and over."""
    *runs, logged, policy = READERS
    while True:
        for source in (finished, stopped):
            for path in files_of(source):
                if path.name not in IGNORED:
                    for kind in runs:
                        yield kind, source, path.relative_to(source)
        for _ in range(10):
            yield logged, taken, Path("logged.npz")
            yield policy, taken, Path("policy.safetensors")


def _flip(file: Path, draw: random.Random) -> str:
    """Change one bit anywhere; gives its place."""
    data = bytearray(file.read_bytes())
    # Headers and the beginnings of files are small and matter most.
    most = len(data) if draw.random() < 0.7 else min(len(data), 200)
    at, bit = draw.randrange(most), draw.randrange(8)
    data[at] ^= 1 << bit
    file.write_bytes(data)
    return f"bit {bit} of byte {at}"


_KNOWN: dict[Place, Any] = {}


def _expected(kind: str, source: Path, file: Path, scratch: Path) -> Any:
    """What the command gives without any damage."""
    place = kind, source, file if source.name == "taken" else Path()
    if place not in _KNOWN:
        folder = scratch / "whole"
        shutil.copytree(source, folder)
        answer, _KNOWN[place] = READERS[kind](folder, file)
        shutil.rmtree(folder)
        if answer.code or answer.kind:
            raise RuntimeError(f"{kind} of {source}: {answer.said}")
    return _KNOWN[place]


def _resume(folder: Path) -> tuple[Answer, Any]:
    answer = command(["resume", str(folder)])
    if answer.code or answer.kind:
        return answer, None
    # Earlier checkpoints, and what was set aside, are not read again.
    last = checkpoint.paths(folder)[-1]
    named = checkpoint.read_manifest(last)
    rows = read_rows(folder / "metrics.csv")[1]
    files = [last / checkpoint.STATE, folder / "evaluation.json"]
    files += [folder / "episodes" / shard.file for shard in named.shards]
    return answer, [
        (named.iteration, named.score),
        [deterministic(row) for row in rows],
        *(file.read_bytes() for file in files),
    ]


def _evaluate(folder: Path, which: str = "last") -> tuple[Answer, Any]:
    flags = ["--episodes", "2", "--checkpoint", which, "--json"]
    answer = command(["evaluate", str(folder), *flags])
    return answer, _json(answer)


def _evaluate_best(folder: Path) -> tuple[Answer, Any]:
    return _evaluate(folder, "best")


def _report(folder: Path) -> tuple[Answer, Any]:
    flags = ["--no-video", "--no-calibration", "--json"]
    answer = command(["report", str(folder), *flags])
    found = _json(answer)
    # The folder's name is a key.
    return answer, [
        list(found.get(key, {}).values()) for key in ("returns", "final_return")
    ]


def _export(folder: Path) -> tuple[Answer, Any]:
    file = folder.parent / "policy.safetensors"
    file.unlink(missing_ok=True)
    answer = command(["export", str(folder), str(file)])
    if answer.code or answer.kind:
        return answer, None
    return answer, load_policy(str(file))([0.3, -0.2]).tolist()


def _learn_from(file: Path) -> tuple[Answer, Any]:
    """Real episodes, as `--data` reads them from a run or a file."""
    found: list[Any] = []

    def read() -> None:
        known = checkpoint.shard_checksums(file)
        episodes = read_logged(file, load("Point2D", horizon=10), known)
        found.extend((e.rewards.tobytes(), e.observations.tobytes()) for e in episodes)

    return call(read), found


def _act(file: Path) -> tuple[Answer, Any]:
    """What an exported policy does."""
    found: list[Any] = []

    def read() -> None:
        try:
            act = load_policy(str(file))
        except ValueError as error:  # as it says
            raise UsageError(str(error)) from None
        found.extend(act([0.3, -0.2]).tolist())

    return call(read), found


def _json(answer: Answer) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(answer.out) if answer.out.strip() else {}
    found.pop("folder", None)
    return found


def _of_a_run(
    read: Callable[[Path], tuple[Answer, Any]],
) -> Callable[[Path, Path], tuple[Answer, Any]]:
    return lambda folder, file: read(folder)


def _of_a_file(
    read: Callable[[Path], tuple[Answer, Any]],
) -> Callable[[Path, Path], tuple[Answer, Any]]:
    return lambda folder, file: read(folder / file)


READERS: dict[str, Callable[[Path, Path], tuple[Answer, Any]]] = {
    "resume": _of_a_run(_resume),
    "evaluate": _of_a_run(_evaluate),
    "evaluate the best": _of_a_run(_evaluate_best),
    "report": _of_a_run(_report),
    "export": _of_a_run(_export),
    "--data of a run": _of_a_run(_learn_from),
    "--data of a file": _of_a_file(_learn_from),
    "an exported policy": _of_a_file(_act),
}
"""What reads a run, or a file that came from one: the answer, and what it comes to."""
