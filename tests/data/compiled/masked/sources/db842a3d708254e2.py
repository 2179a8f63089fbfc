import proto
"""Small programs, eager and compiled: python compiled.py PROGRAM MODE."""
import sys, time
import torch
from torch import nn
import torch.nn.functional as F

DEV = "cuda" if torch.cuda.is_available() else "cpu"

class Norm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))
    def forward(self, x):
        variance = x.float().pow(2).mean(-1, keepdim=True)
        x = x.float() * torch.rsqrt(variance + 1e-6)
        return (x * self.weight).to(torch.bfloat16)

class Attention(nn.Module):
    def __init__(self, d, heads, masked):
        super().__init__()
        self.heads = heads
        self.masked = masked
        self.qkv = nn.Linear(d, 3 * d, bias=False)
        self.out = nn.Linear(d, d, bias=False)
    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        if self.masked:
            mask = torch.ones(t, t, dtype=torch.bool, device=x.device).tril()
            bias = torch.zeros(t, t, dtype=x.dtype, device=x.device).masked_fill(~mask, float("-inf"))
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, d))

class MLP(nn.Module):
    def __init__(self, d, fp32):
        super().__init__()
        self.fp32 = fp32
        self.up = nn.Linear(d, 4 * d, bias=False)
        self.down = nn.Linear(4 * d, d, bias=False)
    def forward(self, x):
        h = F.gelu(self.up(x))
        if self.fp32:
            return F.linear(h.float(), self.down.weight.float()).to(x.dtype)
        return self.down(h)

class Block(nn.Module):
    def __init__(self, d, heads, plant):
        super().__init__()
        self.plant = plant
        self.norm1 = Norm(d)
        self.attention = Attention(d, heads, plant == "masked")
        self.norm2 = Norm(d)
        self.mlp = MLP(d, plant == "fp32")
    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        if self.plant == "break":
            torch._dynamo.graph_break()
        return x + self.mlp(self.norm2(x))

class Transformer(nn.Module):
    def __init__(self, plant="", vocabulary=32000, d=768, heads=12, layers=6):
        super().__init__()
        if plant == "vocabulary":
            vocabulary = 32003
        self.embed = nn.Embedding(vocabulary, d)
        self.blocks = nn.ModuleList(Block(d, heads, plant) for _ in range(layers))
        self.norm = Norm(d)
        self.head = nn.Linear(d, vocabulary, bias=False)
    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

class Residual(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv1 = nn.Conv2d(c, c, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(c)
        self.conv2 = nn.Conv2d(c, c, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(c)
    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return F.relu(x + y)

class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 64, 7, stride=2, padding=3)
        self.blocks = nn.ModuleList(Residual(64) for _ in range(4))
        self.head = nn.Linear(64, 1000)
    def forward(self, x):
        x = F.max_pool2d(F.relu(self.stem(x)), 3, 2)
        for b in self.blocks:
            x = b(x)
        return self.head(x.mean((2, 3)))

def main(program, mode):
    torch.manual_seed(0)
    if program == "conv":
        model = ConvNet().to(DEV).to(torch.bfloat16)
        data = torch.randn(32, 3, 224, 224, device=DEV, dtype=torch.bfloat16)
        target = torch.randint(0, 1000, (32,), device=DEV)
        batches = [(data, target)]
    else:
        plant = "" if program in ("transformer", "shapes") else program
        model = Transformer(plant).to(DEV).to(torch.bfloat16)
        lengths = [512, 448, 384, 320, 256, 192, 128] if program == "shapes" else [512]
        vocabulary = 32003 if plant == "vocabulary" else 32000
        batches = [(torch.randint(0, vocabulary, (8, t), device=DEV),) * 2 for t in lengths]
    options = {"default": {}, "reduce": {"mode": "reduce-overhead"}, "autotune": {"mode": "max-autotune"}}
    if mode != "eager":
        step_model = torch.compile(model, **options[mode])
    else:
        step_model = model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    times = []
    for i in range(40):
        data, target = batches[i % len(batches)]
        t0 = time.perf_counter()
        logits = step_model(data)
        loss = F.cross_entropy(logits.flatten(0, -2).float(), target.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if DEV == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - t0)
    times = sorted(times[12:])
    print(f"plain {program} {mode} {times[len(times)//2]*1e3:.3f} ms", flush=True)

if __name__ == '__main__':
    main(*sys.argv[1:])
