"""The fit of TabNet's census example, on a synthetic census of 32561 people."""

from __future__ import annotations

import numpy as np
import torch
from pytorch_tabnet.augmentations import ClassificationSMOTE
from pytorch_tabnet.tab_model import TabNetClassifier

PEOPLE = 32561
# Number of values of each column; the third is the weight, a number.
COLUMNS = [73, 9, 0, 16, 16, 7, 15, 6, 5, 2, 119, 92, 94, 42]

rng = np.random.default_rng(0)
people = np.stack(
    [rng.integers(count or 1_000_000, size=PEOPLE) for count in COLUMNS], axis=1
)
score = people[:, 0] / 73 + people[:, 4] / 16 + rng.normal(0, 0.3, PEOPLE)
target = np.where(score > 1.3, "not_wealthy", "wealthy").astype(object)
part = rng.choice(["train", "valid", "test"], p=[0.8, 0.1, 0.1], size=PEOPLE)
x_train, y_train = people[part == "train"], target[part == "train"]
x_valid, y_valid = people[part == "valid"], target[part == "valid"]

model = TabNetClassifier(
    cat_idxs=[index for index, count in enumerate(COLUMNS) if count],
    cat_dims=[count for count in COLUMNS if count],
    cat_emb_dim=2,
    optimizer_fn=torch.optim.Adam,
    optimizer_params={"lr": 2e-2},
    scheduler_params={"step_size": 50, "gamma": 0.9},
    scheduler_fn=torch.optim.lr_scheduler.StepLR,
    mask_type="entmax",
    grouped_features=[[0, 1, 2], [8, 9, 10]],
)
model.fit(
    X_train=x_train,
    y_train=y_train,
    eval_set=[(x_train, y_train), (x_valid, y_valid)],
    eval_name=["train", "valid"],
    eval_metric=["auc"],
    max_epochs=100000,
    patience=100000,
    batch_size=1024,
    virtual_batch_size=128,
    num_workers=0,
    weights=1,
    drop_last=False,
    augmentations=ClassificationSMOTE(p=0.2),
    compute_importance=False,
)
