"""Record small programs with each choice of the profiler's options, and time them.

    python benchmarks/options/programs.py FOLDER [SECONDS]

Needs torch, transformers, torchvision and torch-geometric, and a GPU. Each program runs
in a process of its own for each choice: it is warmed up and timed without the profiler,
then some steps are recorded. FOLDER gets the traces, and measured.json the times of a
step in ms. After SECONDS no other program is begun.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torchvision
from torch import nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile, schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Step = Callable[[], object]

CHOICES = {
    "bare": {},
    "full": {"record_shapes": True, "with_stack": True, "profile_memory": True},
    "shapes": {"record_shapes": True},
    "stacks": {"with_stack": True},
    "mem": {"record_shapes": True, "profile_memory": True},
    "bare2": {},
    "memonly": {"profile_memory": True},
    "shst": {"record_shapes": True, "with_stack": True},
}
_MEASURED = "measured.json"
_WARM, _BLOCKS, _BLOCK_MS = 5, 4, 300
_LONG_MS = 25
_GPU = torch.device("cuda")


def _trained(
    model: nn.Module,
    loss: Callable[[nn.Module], torch.Tensor],
    optimizer: Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer] = (
        torch.optim.AdamW
    ),
) -> Step:
    model.to(_GPU).train()
    updates = optimizer(model.parameters())

    def step() -> None:
        updates.zero_grad()
        loss(model).backward()
        updates.step()

    return step


def _numbers(below: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, below, shape, device=_GPU)


def resnet_infer() -> Step:
    """Return one image a step."""
    model = torchvision.models.resnet18().to(_GPU).eval()
    image = torch.randn(1, 3, 224, 224, device=_GPU)
    return torch.no_grad()(lambda: model(image))


def gpt2_generate() -> Step:
    """Return eight tokens a step, by transformers' own loop."""
    from transformers import GPT2Config, GPT2LMHeadModel  # noqa: PLC0415

    config = GPT2Config(n_layer=6, n_head=8, n_embd=512, vocab_size=1000)
    model, prompt = GPT2LMHeadModel(config).to(_GPU).eval(), _numbers(1000, 1, 16)
    return lambda: model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=8,
        min_new_tokens=8,
        do_sample=False,
        pad_token_id=0,
    )


def bert_train() -> Step:
    """Return a small BERT."""
    from transformers import BertConfig, BertForSequenceClassification  # noqa: PLC0415

    config = BertConfig(
        num_hidden_layers=6,
        hidden_size=256,
        num_attention_heads=4,
        intermediate_size=1024,
    )
    words, labels = _numbers(1000, 4, 64), _numbers(2, 4)
    return _trained(
        BertForSequenceClassification(config),
        lambda model: model(input_ids=words, labels=labels).loss,
    )


def mlp_adam() -> Step:
    """Return layers whose parameters are updated one by one."""
    layers = [part for _ in range(8) for part in (nn.Linear(256, 256), nn.ReLU())]
    batch = torch.randn(64, 256, device=_GPU)
    return _trained(
        nn.Sequential(*layers),
        lambda model: model(batch).square().mean(),
        lambda parameters: torch.optim.Adam(parameters, foreach=False),
    )


def lstm_cells() -> Step:
    """Return a loop over time in Python."""
    batch = torch.randn(50, 32, 128, device=_GPU)

    def loss(cell: nn.Module) -> torch.Tensor:
        state = None
        for moment in batch:
            state = cell(moment, state)
        return state[0].sum()

    return _trained(nn.LSTMCell(128, 128), loss)


def vit_amp() -> Step:
    """Return a small ViT with autocast and a scaler."""
    from transformers import ViTConfig, ViTForImageClassification  # noqa: PLC0415

    config = ViTConfig(
        num_hidden_layers=6,
        hidden_size=192,
        num_attention_heads=3,
        intermediate_size=768,
    )
    model = ViTForImageClassification(config).to(_GPU).train()
    images, labels = torch.randn(4, 3, 224, 224, device=_GPU), _numbers(2, 4)
    scaler, updates = torch.amp.GradScaler(), torch.optim.AdamW(model.parameters())

    def step() -> None:
        updates.zero_grad()
        with torch.autocast("cuda", torch.float16):
            loss = model(pixel_values=images, labels=labels).loss
        scaler.scale(loss).backward()
        scaler.step(updates)
        scaler.update()

    return step


def gcn() -> Step:
    """Return convolutions on a graph."""
    from torch_geometric.nn import GCNConv, Sequential  # noqa: PLC0415

    edges, nodes = _numbers(2000, 2, 8000), torch.randn(2000, 64, device=_GPU)
    layers = ((GCNConv(64, 64), "x, edges -> x") for _ in range(6))
    relus = [part for layer in layers for part in (layer, nn.ReLU())]
    return _trained(
        Sequential("x, edges", relus),
        lambda model: model(nodes, edges).square().mean(),
    )


def llama_infer() -> Step:
    """Return one forward pass of a small Llama."""
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415

    config = LlamaConfig(
        num_hidden_layers=8,
        hidden_size=256,
        num_attention_heads=4,
        intermediate_size=688,
        vocab_size=1000,
    )
    model, words = LlamaForCausalLM(config).to(_GPU).eval(), _numbers(1000, 1, 32)
    return torch.inference_mode()(lambda: model(words, use_cache=False))


def t5_train() -> Step:
    """Return a small T5."""
    from transformers import T5Config, T5ForConditionalGeneration  # noqa: PLC0415

    config = T5Config(
        num_layers=3,
        d_model=256,
        d_ff=512,
        num_heads=4,
        d_kv=64,
        vocab_size=1000,
        decoder_start_token_id=0,
    )
    words, labels = _numbers(1000, 4, 32), _numbers(1000, 4, 16)
    return _trained(
        T5ForConditionalGeneration(config),
        lambda model: model(input_ids=words, labels=labels).loss,
    )


def _classified(model: nn.Module, count: int, size: int) -> Step:
    images, labels = torch.randn(count, 3, size, size, device=_GPU), _numbers(9, count)
    return _trained(
        model,
        lambda trained: functional.cross_entropy(trained(images), labels),
        lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
    )


def mobilenet() -> Step:
    """Return many small convolutions."""
    return _classified(torchvision.models.mobilenet_v3_small(), 8, 96)


def densenet_train() -> Step:
    """Return a deep network on tiny images."""
    return _classified(torchvision.models.densenet121(), 2, 64)


def policy() -> Step:
    """Return an agent that asks the GPU for each of its actions."""
    hidden = (nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
    model = nn.Sequential(*hidden, nn.Linear(64, 4)).to(_GPU)
    updates = torch.optim.Adam(model.parameters())

    def step() -> None:
        chosen, state = [], torch.zeros(1, 8, device=_GPU)
        for _ in range(20):
            actions = torch.distributions.Categorical(logits=model(state))
            action = actions.sample()
            chosen.append(actions.log_prob(action))
            state = state + torch.full((1, 8), 0.01 * action.item(), device=_GPU)
        updates.zero_grad()
        torch.stack(chosen).sum().neg().backward()
        updates.step()

    return step


def losses_python() -> Step:
    """Return Python that computes between a few operators."""
    batch = torch.randn(32, 64, device=_GPU)

    def loss(model: nn.Module) -> torch.Tensor:
        total = 0
        for _ in range(10):
            weight = sum(number * number % 7 for number in range(1500)) % 3 + 1
            total = total + (model(batch) * weight).square().mean()
        return total

    return _trained(nn.Linear(64, 64), loss, torch.optim.SGD)


def encoder_infer_half() -> Step:
    """Return PyTorch's own encoder."""
    layer = nn.TransformerEncoderLayer(256, 4, 512, batch_first=True)
    model = nn.TransformerEncoder(layer, 8).to(_GPU).half().train()
    words = torch.randn(2, 32, 256, device=_GPU, dtype=torch.half)
    return torch.no_grad()(lambda: model(words))


PROGRAMS = (
    *(resnet_infer, gpt2_generate, bert_train, mlp_adam, lstm_cells, vit_amp, gcn),
    *(llama_infer, t5_train, mobilenet, policy, losses_python, densenet_train),
    encoder_infer_half,
)


def _step_ms(step: Step, count: int) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(count):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / count * 1e3


def record(name: str, choice: str, folder: Path) -> None:
    """Time a program, and record it."""
    torch.manual_seed(0)
    step = {item.__name__: item for item in PROGRAMS}[name]()
    for _ in range(_WARM):
        step()
    once = _step_ms(step, 3)
    count = max(5, min(40, int(_BLOCK_MS / once)))
    times = [_step_ms(step, count) for _ in range(_BLOCKS)]
    active = 3 if once > _LONG_MS else 5
    with profile(
        activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
        schedule=schedule(wait=0, warmup=2, active=active, repeat=1),
        **CHOICES[choice],
    ) as recording:
        for _ in range(active + 2):
            step()
            recording.step()
        torch.cuda.synchronize()
    recording.export_chrome_trace(str(folder / f"{name}.{choice}.json.gz"))
    file = folder / _MEASURED
    known = json.loads(file.read_text()) if file.exists() else {}
    known[f"{name}.{choice}"] = round(statistics.median(times), 3)
    file.write_text(json.dumps(known, indent=1))


def main() -> None:
    """Record every program with every choice."""
    folder, seconds = Path(sys.argv[1]), float((*sys.argv, "inf")[2])
    folder.mkdir(exist_ok=True)
    until = time.monotonic() + seconds
    for choice in CHOICES:
        for program in PROGRAMS:
            if time.monotonic() < until:
                command = ["--one", program.__name__, choice, str(folder)]
                subprocess.run([sys.executable, __file__, *command], check=True)


if __name__ == "__main__":
    if sys.argv[1] == "--one":
        record(sys.argv[2], sys.argv[3], Path(sys.argv[4]))
    else:
        main()
