"""What type checkers see of the agent classes, which the registry makes at run time.

python -m tools.agent_types writes `src/pombu/_agents.pyi`; `make format` calls it.
"""

from pathlib import Path

from pombu.algorithms.registry import ALGORITHMS

FILE = Path(__file__).resolve().parent.parent / "src" / "pombu" / "_agents.pyi"


def stub() -> str:
    """One class for every entry of the registry."""
    entries = ALGORITHMS.values()
    # Capitals first, as ruff sorts such a list.
    agents = sorted(
        (entry.agent for entry in entries), key=lambda name: (not name.isupper(), name)
    )
    names = "".join(f'    "{agent}",\n' for agent in agents)
    classes = "".join(
        f"class {entry.agent}({'_WithEnsemble' if entry.q_uncertainty else 'Agent'}): "
        "...\n"
        for entry in entries
    )
    return (
        "# Written by `python -m tools.agent_types` from the registry.\n"
        "from pombu.agent.agents import Agent, _WithEnsemble\n\n"
        f"__all__ = [\n{names}]\n\n{classes}"
    )


if __name__ == "__main__":
    FILE.write_text(stub())
