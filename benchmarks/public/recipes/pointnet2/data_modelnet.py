"""Files as those of ModelNet40: text of 10000 points and normals for each object."""

from __future__ import annotations

from pathlib import Path

import numpy as np

CLASSES, FILES_OF_A_CLASS, POINTS = 40, 2, 10000
SIZES = {"train": 9843, "test": 2468}


def _cloud(rng: np.random.Generator, kind: int) -> np.ndarray:
    """Return points of a sphere with bumps (their number is the class) and normals."""
    normals = rng.normal(size=(POINTS, 3))
    normals /= np.linalg.norm(normals, axis=1, keepdims=True)
    angle = np.arctan2(normals[:, 1], normals[:, 0])
    bumps = 1 + 0.3 * np.cos(kind * angle + rng.uniform(0, 6))
    points = normals * bumps[:, None] * rng.uniform(0.7, 1.3, 3)
    return np.hstack([points / np.abs(points).max(), normals])


def write(folder: str) -> str:
    """Write the files that are not there yet; return the folder."""
    rng = np.random.default_rng(0)
    root = Path(folder)
    names = [f"class{kind:02}" for kind in range(CLASSES)]
    for kind, name in enumerate(names):
        for number in range(FILES_OF_A_CLASS):
            file = root / name / f"{name}_{number:04}.txt"
            if not file.exists():
                file.parent.mkdir(parents=True, exist_ok=True)
                rows = _cloud(rng, kind).tolist()
                text = "\n".join(",".join(f"{x:.6f}" for x in row) for row in rows)
                file.write_text(text + "\n")
    (root / "modelnet40_shape_names.txt").write_text("\n".join(names) + "\n")
    for part, size in SIZES.items():
        kinds = np.arange(size) % CLASSES
        numbers = np.arange(size) // CLASSES % FILES_OF_A_CLASS
        lines = [f"{names[k]}_{n:04}" for k, n in zip(kinds, numbers, strict=True)]
        (root / f"modelnet40_{part}.txt").write_text("\n".join(lines) + "\n")
    return folder
