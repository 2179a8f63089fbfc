"""Stand-in for gym and stable_baselines3, and a game of the size of Atari's."""

from __future__ import annotations

import contextlib
import multiprocessing
from types import SimpleNamespace

import numpy as np

ROWS, COLUMNS = np.arange(84) * 210 // 84, np.arange(84) * 160 // 84
EMPTY = np.full((210, 160, 3), (144, 72, 17), np.uint8)


class Box:
    """A space of arrays."""

    def __init__(
        self, low: object, high: object, shape: object = None, dtype: object = None
    ) -> None:
        self.shape = tuple(np.shape(low) if shape is None else shape)
        self.dtype = np.dtype(dtype)
        self.low, self.high = (np.full(self.shape, x, dtype) for x in (low, high))


Discrete = type("Discrete", (SimpleNamespace,), {})  # the program asks for its name


class AtariEnv:
    """A ball and a paddle; a step has four frames, as the usual wrappers make it."""

    def __init__(self) -> None:
        self.observation_space = Box(0, 255, (84, 84, 1), np.uint8)
        self.action_space = Discrete(n=6, shape=())
        self.unwrapped, self.get_action_meanings = self, list

    def seed(self, seed: int) -> None:
        """Start the random numbers."""
        self.rng = np.random.default_rng(seed)

    def _frame(self) -> np.ndarray:
        frame = EMPTY.copy()
        frame[self.paddle : self.paddle + 16, 140:144] = 92, 186, 92
        frame[self.ball[0] : self.ball[0] + 4, self.ball[1] : self.ball[1] + 2] = 236
        return frame

    def _see(self, frames: list[np.ndarray]) -> np.ndarray:
        frame = np.max(frames[-2:], axis=0)
        return frame[ROWS][:, COLUMNS].mean(2, keepdims=True).astype(np.uint8)

    def reset(self) -> np.ndarray:
        """Start a game; return its first frame."""
        self.steps, self.total, self.paddle, self.ball = 0, 0.0, 100, [100, 20]
        return self._see([self._frame()])

    def step(self, action: object) -> tuple[object, ...]:
        """Play four frames."""
        frames, reward = [], 0.0
        for _ in range(4):
            way = {2: -4, 4: -4, 3: 4, 5: 4}.get(int(np.ravel(action)[0]), 0)
            self.paddle = min(max(self.paddle + way, 34), 178)
            self.ball[1] += 2
            if self.ball[1] > 140:
                reward = 1.0 if abs(self.ball[0] - self.paddle - 8) < 12 else -1.0
                self.ball = [int(self.rng.integers(34, 180)), 20]
            frames.append(self._frame())
        self.steps, self.total = self.steps + 1, self.total + reward
        info = {"episode": {"r": self.total}} if self.steps == 1000 else {}
        return self._see(frames), reward, bool(info), info


class Wrapper:
    """An environment around another, whose observations it changes."""

    def __init__(self, env: AtariEnv) -> None:
        self.env = env
        self.observation_space = env.observation_space
        self.action_space = env.action_space

    def step(self, action: object) -> tuple[object, ...]:
        """Take a step and change what is seen."""
        seen, *others = self.env.step(action)
        return self.observation(seen), *others

    def reset(self) -> np.ndarray:
        """Reset and change what is seen."""
        return self.observation(self.env.reset())


def _work(pipe: object, other: object, make_env: object) -> None:
    other.close()
    env = make_env()
    pipe.send((env.observation_space, env.action_space))
    with contextlib.suppress(EOFError):
        while True:
            action = pipe.recv()
            seen, reward, done, info = env.step(action) if action >= 0 else _START
            pipe.send((env.reset() if done else seen, reward, done, info))


class SubprocVecEnv:
    """Environments in processes of their own."""

    def __init__(self, makers: list[object]) -> None:
        context = multiprocessing.get_context("fork")
        self.pipes, self.num_envs = [], len(makers)
        for one in makers:
            pipe, other = context.Pipe()
            context.Process(target=_work, args=(other, pipe, one), daemon=True).start()
            other.close()
            self.pipes.append(pipe)
            self.observation_space, self.action_space = pipe.recv()

    def reset(self) -> np.ndarray:
        """Reset all."""
        self.step_async([-1] * self.num_envs)
        return self.step_wait()[0]

    def step_async(self, actions: object) -> None:
        """Send an action to each."""
        for pipe, action in zip(self.pipes, actions, strict=True):
            pipe.send(action)

    def step_wait(self) -> tuple[object, ...]:
        """Wait for all."""
        seen, rewards, done, infos = zip(*(p.recv() for p in self.pipes), strict=True)
        return np.stack(seen), np.stack(rewards), np.stack(done), infos


class VecEnvWrapper:
    """A vector around another."""

    def __init__(self, venv: SubprocVecEnv, observation_space: object = None) -> None:
        self.venv, self.num_envs = venv, venv.num_envs
        self.observation_space = observation_space or venv.observation_space
        self.action_space = venv.action_space

    def step(self, actions: object) -> tuple[object, ...]:
        """Take a step of each."""
        getattr(self, "step_async", self.venv.step_async)(actions)
        return self.step_wait()


_START = (None, 0.0, True, {})
make = lambda name: AtariEnv()  # noqa: ARG005, E731
ClipAction = MaxAndSkipEnv = Monitor = WarpFrame = lambda env, *_, **__: env
ClipRewardEnv = EpisodicLifeEnv = FireResetEnv = NoopResetEnv = WarpFrame
ObservationWrapper, DummyVecEnv, VecNormalize = Wrapper, SubprocVecEnv, SubprocVecEnv
spaces, envs = SimpleNamespace(Box=Box), SimpleNamespace(atari=SimpleNamespace())
envs.atari.atari_env = SimpleNamespace(AtariEnv=AtariEnv)
