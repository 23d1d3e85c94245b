"""Q-uncertainty of an ensemble pombu did not train: five bootstrapped regressions."""

import numpy as np

from pombu.uncertainty import diagnose, estimate

rng = np.random.default_rng(0)
H, GAMMA = 20, 0.95


def policy(states):
    return -0.5 * states[..., 1:]


def reward(states, actions, next_states):
    return -np.sum(next_states**2, axis=-1)


# Forty noisy transitions, and five least-squares models of bootstrapped copies of them.
x = rng.normal(size=(40, 3))
truth = np.array([[1.0, -0.1], [0.1, 0.98], [0.0, 0.1]])
y = x @ truth + 0.1 * rng.normal(size=(40, 2))
weights = [np.linalg.lstsq(x[i], y[i])[0] for i in rng.integers(40, size=(5, 40))]
members = [lambda s, a, w=w: np.concatenate([s, a], -1) @ w for w in weights]

# The policy's value in the mean model, V(s) = -s'Ps, by iterating its Bellman equation.
closed = np.array([[1, 0, 0], [0, 1, -0.5]]) @ np.mean(weights, axis=0)
P = np.zeros((2, 2))
for _ in range(200):
    P = closed @ (np.eye(2) + GAMMA * P) @ closed.T

# One imagined trajectory per start: each step is made by a member drawn at random.
states = [rng.normal(size=(6, 2))]
for _ in range(H):
    states.append(members[rng.integers(5)](states[-1], policy(states[-1])))
s, value = np.stack(states[:-1]), lambda s: -np.sum((s @ P) * s, axis=-1)
print("sigma(Q):", estimate(members, value, s, policy(s), GAMMA, reward=reward)[0])
check = diagnose(members, value, policy, states[0], H, GAMMA, reward=reward)
print(f"members rolled alone vary {check.ratio:.1f} times as much as U says")
