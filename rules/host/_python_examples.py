"""Drawn steps whose Python takes long: a function of the program, and a hook."""

from __future__ import annotations

DRAWN = """
            host   [ProfilerStep#1                                                  ]
            host    [torch/nn.py(5): f    ] [train.py(30): tokenise                ]
            host     [aten::mm           ]   [<built-in method split of str object>]
            host      [cudaLaunchKernel>1]
            gpu 7                   [gemm<1]
"""
HOOKED = """
            host   [ProfilerStep#1                                                    ]
            host    [nn.Module: Linear_0                                             ]
            host     [torch/nn/modules/module.py(9): _call_impl                     ]
            host      [torch/nn/modules/linear.py(5): forward]  [train.py(9): keep ]
            host       [aten::mm           ]                    [aten::mean        ]
            host        [cudaLaunchKernel>1]                    [cudaLaunchKernel>2]
            gpu 7                      [gemm<1]                             [mean<2]
"""
