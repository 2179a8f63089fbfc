"""ATT002: attention is not on its fastest kernels, for another cause than a mask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from traceq.analysis.base.device import used_gpu
from traceq.analysis.patterns.attention import fallbacks, flash_saving
from traceq.lint import Bad, Good, Need, Rule, Severity, View, inputs
from traceq.lint.evidence import attention_lines, dtype, kernel_lines, module_line
from traceq.model.torch_versions import newer_than
from traceq.words import times

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.lint import Finding

_KERNELS = {"efficient": "mem-efficient", "math": "unfused (math)"}
# What is in the way, and what to do about it; filled in from the call.
_CAUSES = {
    "rank": (
        "its inputs have {rank} dims and not 4",
        "give it [batch, heads, sequence, head dim]; unsqueeze what is missing",
    ),
    "mixed dtypes": (
        "query, key and value are {types}",
        "cast the odd one, as query.to(value.dtype): rotary embeddings in float32 often"
        " leave query and key wider than value",
    ),
    "dtype": (
        "query, key and value are {types}",
        "run it in bfloat16, by torch.autocast('cuda', dtype=torch.bfloat16) or"
        " model.to(torch.bfloat16): flash attention takes 16 bits only",
    ),
    "head dims": (
        "query, key and value have head dims {width}, {key_width} and {value_width}",
        "pad them to one head dim with zeros and cut the result",
    ),
    "head dim": (
        "the head dim is {width}, more than flash attention takes here",
        "use more heads of at most 128; 64 and 128 are fastest",
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
        "is_causal=True meets {queries} queries and {keys} keys",
        "pass attn_mask=torch.nn.attention.bias.causal_lower_right({queries}, {keys})"
        " instead, which counts from the last key; is_causal counts from the first",
    ),
    "": (
        "for no cause that its arguments show",
        "look for sdpa_kernel(...), enable_flash_sdp(False), or a torch that was built"
        " without flash attention",
    ),
    "unknown": (
        "for a cause that this trace does not show",
        "record with profile(record_shapes=True); the likely causes are an attn_mask or"
        " sdpa_kernel(...)",
    ),
}
_DIMS = ("batch", "heads", "length", "width")
_SHAPES = [[8, 12, 1024, 64]] * 3


@dataclass(frozen=True)
class AttentionFallback(Rule):
    """Attention leaves its fastest kernels because of what it is given.

    ## What it does

    Looks for ``scaled_dot_product_attention`` on mem-efficient or unfused kernels,
    and names what flash attention refuses: the dtype, the head dim, strides, heads or
    batch sizes that differ, ``is_causal`` where queries and keys differ in number, too
    few dims. Where a mask is all that is in the way, see ATT001. Without shapes only
    float32 is seen, from the kernels' names.

    ## Why is this bad?

    Torch chooses the kernel in silence. Mem-efficient kernels take two to four times
    as long as flash attention, unfused ones write the whole matrix of scores to
    memory.

    ## How to fix it

    Change the argument that the finding names; a warning with the reason can be had
    from ``torch.backends.cuda.can_use_flash_attention(params, debug=True)``.

    ## When it is wrong

    A program may need float32, or may have chosen the kernel by ``sdpa_kernel``; in the
    latter case no cause is seen, and the finding is an info. The cost is that of
    attention alone, at the rate flash attention has on short sequences.
    """

    code = "ATT002"
    needs = frozenset({Need.GPU})

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
                "SDPA runs on mem-efficient kernels once a step because query, key and"
                " value are float32",
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
        gpu = used_gpu(view.trace)
        groups: dict[tuple[object, ...], list[dict[str, Any]]] = {}
        for row in fallbacks(view.trace, view.kernels, gpu):
            causes = row["causes"] or [""]
            if causes == ["mask"]:
                continue
            if not row["causes"] and not row["query"]:
                causes = ["unknown"]
            saving = flash_saving(row, gpu, causal=row["causal"])
            place = (row["file"], row["line"], row["function"], row["layers"])
            found = groups.setdefault((*place, row["backend"], *causes), [])
            found.append(row | {"causes": causes, "saving": saving})
        for rows in groups.values():
            yield self._finding(view, rows)

    def _finding(self, view: View, rows: list[dict[str, Any]]) -> Finding:
        most = max(rows, key=lambda row: (row["gpu_ns"], row["query"] or []))
        kernels = [kernel for row in rows for kernel in row["kernels"]]
        calls = sum(row["calls"] for row in rows) / view.steps
        why, advice = _words(most)
        often = f" {times(calls)} a step" if calls else ""
        guess = most["causes"][0] in ("", "unknown")
        return self.finding(
            f"SDPA runs on {_KERNELS[most['backend']]} kernels{often} {why}",
            subject=f"{most['backend']} {', '.join(most['causes'])}",
            place=view.place(most),
            count=calls,
            gpu_ns=sum(row["saving"] for row in rows) / view.steps,
            evidence=[
                *attention_lines(most),
                *kernel_lines(view, kernels),
                *module_line(most["modules"]),
            ],
            data={key: most[key] for key in ("backend", "causes", "query", "key")},
            advice=_told(view, most["function"], advice),
            severity=Severity.info if guess else None,
            ops=[op for row in rows for op in row["ops"]],
            kernels=kernels,
        )


def _words(call: dict[str, Any]) -> tuple[str, str]:
    """Say why a call is slow, and what to do."""
    parts = ("query", "key", "value")
    known = {
        "types": " and ".join(dict.fromkeys(dtype(call[f"{p}_type"]) for p in parts))
    }
    known["types"] = known["types"] or "float32"
    if call["query"]:
        known["rank"] = str(len(call["query"]))
        for part in parts:
            prefix = "" if part == "query" else f"{part}_"
            sizes = zip(_DIMS, call[part], strict=False)
            known |= {f"{prefix}{name}": str(size) for name, size in sizes}
    found = [_CAUSES[cause] for cause in call["causes"] if cause != "mask"]
    why = ", and ".join(text for text, _ in found)
    advice = "; ".join(text for _, text in found)
    known |= {"queries": known.get("length", ""), "keys": known.get("key_length", "")}
    if "mask" in call["causes"]:
        why, advice = why + ", and it has an attn_mask", advice + "; then see ATT001"
    because = "" if why.startswith("for ") else "because "
    return because + why.format(**known), advice.format(**known)


def _told(view: View, function: str | None, advice: str) -> str:
    """Say where to do it, and what of it needs a newer torch."""
    newer = newer_than(view.trace.facts, advice)
    notes = "".join(f"; {name} needs torch {first}" for name, first in newer.items())
    return (f"in {function}: " if function else "") + advice + notes
