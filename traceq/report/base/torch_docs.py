"""Pages of torch's documentation, by the names that rules link."""

from __future__ import annotations

_ROOT = "https://docs.pytorch.org/docs/stable"
# Each has a page of its own.
_NAMES = (
    "torch.Tensor.contiguous",
    "torch.Tensor.detach",
    "torch.Tensor.index_copy_",
    "torch.Tensor.item",
    "torch.Tensor.pin_memory",
    "torch.Tensor.record_stream",
    "torch.Tensor.to",
    "torch._logging.set_logs",
    "torch.bmm",
    "torch.cat",
    "torch.compile",
    "torch.compiler.cudagraph_mark_step_begin",
    "torch.compiler.disable",
    "torch.compiler.set_stance",
    "torch.cond",
    "torch.cuda.CUDAGraph",
    "torch.cuda.Event",
    "torch.cuda.Stream",
    "torch.cuda.clock_rate",
    "torch.cuda.empty_cache",
    "torch.cuda.graph",
    "torch.cuda.make_graphed_callables",
    "torch.cuda.set_sync_debug_mode",
    "torch.cuda.synchronize",
    "torch.cumsum",
    "torch.nn.Embedding",
    "torch.nn.LSTM",
    "torch.nn.LayerNorm",
    "torch.nn.Linear",
    "torch.nn.MultiheadAttention",
    "torch.nn.RMSNorm",
    "torch.nn.functional.cross_entropy",
    "torch.nn.functional.embedding",
    "torch.nn.functional.interpolate",
    "torch.nn.functional.layer_norm",
    "torch.nn.functional.linear_cross_entropy",
    "torch.nn.functional.one_hot",
    "torch.nn.functional.pad",
    "torch.nn.functional.rms_norm",
    "torch.nn.functional.scaled_dot_product_attention",
    "torch.nn.functional.unfold",
    "torch.nn.parallel.DistributedDataParallel",
    "torch.nn.utils.clip_grad_norm_",
    "torch.nn.utils.rnn.pad_sequence",
    "torch.nonzero_static",
    "torch.optim.Adafactor",
    "torch.optim.Adam",
    "torch.optim.AdamW",
    "torch.optim.SGD",
    "torch.randn",
    "torch.set_float32_matmul_precision",
    "torch.set_num_threads",
    "torch.stack",
    "torch.sum",
    "torch.where",
)
# These are parts of a page, or a page of another name.
_PARTS = {
    "PYTORCH_ALLOC_CONF": "notes/cuda.html#cuda-memory-management",
    "torch.amp.GradScaler": "amp.html#gradient-scaling",
    "torch.autocast": "amp.html#torch.autocast",
    "torch.backends.cuda.can_use_flash_attention": "backends.html#torch.backends.cuda"
    ".can_use_flash_attention",
    "torch.backends.cudnn.benchmark": "backends.html#torch.backends.cudnn.benchmark",
    "torch.cuda.memory._record_memory_history": "torch_cuda_memory.html",
    "torch.distributed": "distributed.html",
    "torch.distributed.all_to_all_single": "distributed.html#torch.distributed"
    ".all_to_all_single",
    "torch.distributed.checkpoint.async_save": "distributed.checkpoint.html",
    "torch.distributed.fsdp.fully_shard": "distributed.fsdp.fully_shard.html",
    "torch.distributed.pipelining": "distributed.pipelining.html",
    "torch.memory_format": "tensor_attributes.html#torch.memory_format",
    "torch.nn.attention.bias": "nn.attention.bias.html",
    "torch.nn.attention.flex_attention": "nn.attention.flex_attention.html",
    "torch.nn.attention.varlen": "nn.attention.varlen.html",
    "torch.profiler.profile": "profiler.html#torch.profiler.profile",
    "torch.profiler.schedule": "profiler.html#torch.profiler.schedule",
    "torch.utils.benchmark.Timer": "benchmark_utils.html#torch.utils.benchmark.Timer",
    "torch.utils.checkpoint.checkpoint": "checkpoint.html#torch.utils.checkpoint"
    ".checkpoint",
    "torch.utils.data.DataLoader": "data.html#torch.utils.data.DataLoader",
    "torch.utils.data.distributed.DistributedSampler": "data.html#torch.utils.data"
    ".distributed.DistributedSampler",
}
TORCH_PAGES = {name: f"{_ROOT}/generated/{name}.html" for name in _NAMES} | {
    name: f"{_ROOT}/{page}" for name, page in _PARTS.items()
}
