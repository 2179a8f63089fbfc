"""An environment with the shapes of dm_control's cheetah_run."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

SEEN, ACTIONS, STEPS = 17, 6, 1000


class Cheetah:
    """A state that actions push, and that comes to rest without them."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.push = self.rng.normal(0, 0.3, (SEEN, ACTIONS))
        self.observation_space = SimpleNamespace(shape=(SEEN,))
        self.action_space = SimpleNamespace(
            shape=(ACTIONS,),
            low=-np.ones(ACTIONS, np.float32),
            high=np.ones(ACTIONS, np.float32),
            sample=lambda: self.rng.uniform(-1, 1, ACTIONS).astype(np.float32),
        )
        self._max_episode_steps = STEPS

    def seed(self, seed: int) -> None:
        """Start the random numbers."""
        self.rng = np.random.default_rng(seed)

    def reset(self) -> np.ndarray:
        """Start an episode."""
        self.steps, self.state = 0, self.rng.normal(0, 0.1, SEEN)
        return self.state.astype(np.float32)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, dict]:
        """Move; the first number is the speed, and the reward."""
        noise = self.rng.normal(0, 0.01, SEEN)
        self.state = np.tanh(0.95 * self.state + self.push @ action + noise)
        self.steps += 1
        seen, done = self.state.astype(np.float32), self.steps == STEPS
        return seen, float(np.clip(self.state[0], 0, 1)), done, {}


def make(seed: int, **names: object) -> Cheetah:
    """Return the environment, whatever its names."""
    del names
    return Cheetah(seed)
