"""ATT002: attention falls back to slower kernels, for another cause than a mask."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.analysis.base import ownership
from traceq.analysis.patterns import attention
from traceq.linter import (
    Bad,
    Good,
    Need,
    Rule,
    Seen,
    Severity,
    View,
    dataclass,
    inputs,
    kernel_lines,
    located_advice,
    module_line,
    often,
    own_function,
)

from ._shared import INPUTS, KERNELS, attention_lines, dtypes, fixes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding, Row

# What FlashAttention does not take, and what to do about it; filled in from the call.
_CAUSES = {
    "rank": (
        "its inputs have {rank} dims instead of 4",
        "pass [batch, heads, sequence, head dim]; unsqueeze what is missing",
    ),
    "mixed dtypes": (
        "query, key and value are {types}",
        "cast them to one dtype, as query.to(value.dtype): rotary embeddings in float32"
        " often leave query and key in float32",
    ),
    "dtype": (
        "query, key and value are {types}",
        "run it in bfloat16, with torch.autocast('cuda', dtype=torch.bfloat16) or"
        " model.to(torch.bfloat16): FlashAttention takes bfloat16 and float16 only",
    ),
    "head dims": (
        "query, key and value have head dims {width}, {key_width} and {value_width}",
        "pad them with zeros to one head dim, pass scale={width} ** -0.5, and slice the"
        " result",
    ),
    "head dim": (
        "the head dim is {width}, more than FlashAttention supports on this GPU",
        "if the model may change, use more heads of 64 or 128, which are fastest",
    ),
    "strides": (
        "the last dim of query, key or value is not contiguous",
        "transpose other dims than the last, or call .contiguous() on that input",
    ),
    "batch": (
        "query, key and value have batch sizes {batch}, {key_batch} and {value_batch}",
        "expand them to one batch size",
    ),
    "heads": (
        "query has {heads} heads, key and value have {key_heads}",
        "pass enable_gqa=True",
    ),
    "causal": (
        "is_causal=True is used with {length} queries and {key_length} keys",
        "if the queries are the last positions of the keys, as with a KV cache, pass"
        " attn_mask=torch.nn.attention.bias.causal_lower_right({length}, {key_length})"
        " instead: is_causal=True aligns the mask to the first key",
    ),
    "": (
        "and its arguments do not show why",
        "look for sdpa_kernel(...), enable_flash_sdp(False), or a torch built without"
        " FlashAttention",
    ),
    "unknown": (
        "and this trace does not show why",
        "record with profile(record_shapes=True); likely causes are an attn_mask or"
        " sdpa_kernel(...)",
    ),
}
_UNEXPLAINED = ("", "unknown")
_DIMS = ("batch", "heads", "length", "width")
_SHAPES = [[8, 12, 1024, 64]] * 3


@dataclass(frozen=True)
class AttentionFallback(Rule):
    """SDPA falls back from FlashAttention because of its inputs (dtype, shape, strides).

    ## What it does

    Finds ``scaled_dot_product_attention`` on mem-efficient or unfused kernels and names
    what FlashAttention does not take: the dtype, the head dim, the strides, heads or
    batch sizes that differ, ``is_causal`` with unequal numbers of queries and keys, too
    few dims. Calls where only a mask is in the way are left to ATT001. Without shapes
    only float32 is seen, from the kernels' names.

    ## Why is this bad?

    Torch picks the kernel without a warning. Mem-efficient kernels take two to four
    times as long as FlashAttention; unfused ones write the whole matrix of scores to
    memory.

    ## How to fix it

    Change the argument that the finding names. Torch prints its own reason with
    ``torch.backends.cuda.can_use_flash_attention(params, debug=True)``.

    ```diff
    - out = F.scaled_dot_product_attention(q.float(), k.float(), v.float())
    + out = F.scaled_dot_product_attention(q.bfloat16(), k.bfloat16(), v.bfloat16())
    ```

    ## When it is wrong

    The program may need float32, or may have chosen the kernel with ``sdpa_kernel``;
    then no cause is seen, and the finding is an info. The saving is of attention alone,
    with FlashAttention as fast as it is on short sequences.

    ## Measured

    On an H200, in ms a step. bfloat16 for the whole model, whose matmuls got faster
    too: ``attn_fp32`` 67.0 → 9.3. The other causes were not tried.
    """  # noqa: E501 - the summary is one sentence on one line

    code = "ATT002"
    since = "0.1.0"
    see = (
        "torch.nn.functional.scaled_dot_product_attention",
        "torch.autocast",
        "torch.backends.cuda.can_use_flash_attention",
    )
    needs = frozenset({Need.GPU})

    seen = Seen(
        of="fixtures/twins/attn_fp32",
        text="""
        ATT002 attention-fallback  saves 5.37 ms/step (8%)
          SDPA falls back to mem-efficient kernels 4 times a step because query, key
            and value are float32
          in       causal (dev_cases.py:44) of LM_0/Block_0
          shapes   query [8,12,1024,64], key [8,12,1024,64], value [8,12,1024,64]
          dtype    float32
          kernel   fmha_cutlassB_f32_aligned_64x64_k64_sm80 ×4
          kernel   fmha_cutlassF_f32_aligned_64x64_rf_sm80 ×4
          kernel   reduce_kernel<sum_functor> ×4
          modules  LM_0/Block_0 and 3 more
          fix      in causal: run it in bfloat16, with torch.autocast('cuda',
                   dtype=torch.bfloat16) or model.to(torch.bfloat16): FlashAttention
                   takes bfloat16 and float16 only
        """,
    )

    examples = (
        Bad(
            """
            host   [ProfilerStep#1                                                ]
            host    [model.py(44): attend                                        ]
            host     [aten::scaled_dot_product_attention                        ]
            host      [aten::_scaled_dot_product_efficient_attention           ]
            host       [cudaLaunchKernel>1]
            gpu 7                [fmha_cutlassF_f32_aligned_64x64_rf_sm80<1]
            """,
            finds=(
                "SDPA falls back to mem-efficient kernels once a step because query,"
                " key and value are float32",
            ),
            args={
                "aten::scaled_dot_product_attention": inputs(_SHAPES, ["float"] * 3),
            },
        ),
        Good(
            """
            host   [ProfilerStep#1                                                ]
            host    [model.py(44): attend                                        ]
            host     [aten::scaled_dot_product_attention                        ]
            host      [aten::_scaled_dot_product_flash_attention               ]
            host       [cudaLaunchKernel>1]
            gpu 7                [void pytorch_flash::flash_fwd_kernel<1]
            """,
            args={
                "aten::scaled_dot_product_attention": inputs(
                    _SHAPES, ["c10::BFloat16"] * 3
                ),
            },
        ),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Group the calls by place, kernels and causes."""
        gpu = view.gpu
        rows = [
            row
            | {
                "causes": _causes(row),
                "share": attention.flash_share(row, gpu, causal=row["causal"]),
            }
            for row in attention.fallbacks(view.trace, view.kernels, gpu)
            if row["causes"] != ["mask"]
        ]
        for same in ownership.together(rows, "backend", "causes"):
            yield self._finding(view, same)

    def _finding(self, view: View, rows: list[Row]) -> Finding:
        most = max(rows, key=lambda row: (row["gpu_ns"], row["query"] or []))
        calls = sum(row["calls"] for row in rows) / view.steps
        why, advice = _cause_and_advice(most)
        when = f" {often(calls)}" if calls else ""
        fits = most["causes"][0] == "dtype" and not most["via"]
        unexplained = most["causes"][0] in _UNEXPLAINED
        return self.finding(
            f"SDPA falls back to {KERNELS[most['backend']]} kernels{when} {why}",
            subject=f"{most['backend']} {', '.join(most['causes'])}",
            place=view.place(most),
            count=calls,
            fix=fixes(rows),
            evidence=[
                *attention_lines(most),
                *kernel_lines(view, [one for row in rows for one in row["kernels"]]),
                *module_line(most["modules"]),
            ],
            data={key: most[key] for key in ("backend", "query", "key")}
            | {"causes": list(most["causes"])},
            advice=located_advice(view, own_function(most), advice),
            example=None if fits else "",
            severity=Severity.info if unexplained else None,
            ops=[op for row in rows for op in row["ops"]],
        )


def _causes(call: Row) -> tuple[str, ...]:
    if call["causes"]:
        return tuple(call["causes"])
    return ("",) if call["query"] else ("unknown",)


def _cause_and_advice(call: Row) -> tuple[str, str]:
    """Return why a call falls back, and what to do about it."""
    found = [_CAUSES[cause] for cause in call["causes"] if cause != "mask"]
    why = ", and ".join(text for text, _ in found)
    advice = "; ".join(text for _, text in found)
    if "mask" in call["causes"]:
        why, advice = f"{why}, and it has an attn_mask", f"{advice}; then see ATT001"
    if call["causes"][0] not in _UNEXPLAINED:
        why = f"because {why}"
    sizes = _sizes(call)
    return why.format(**sizes), advice.format(**sizes)


def _sizes(call: Row) -> dict[str, str]:
    """Return what the texts on causes are filled in with."""
    known = {"types": " and ".join(dtypes(call)) or "float32"}
    if not call["query"]:
        return known
    for part in INPUTS:
        prefix = "" if part == "query" else f"{part}_"
        sizes = zip(_DIMS, call[part], strict=False)
        known |= {f"{prefix}{name}": str(size) for name, size in sizes}
    return known | {"rank": str(len(call["query"]))}
