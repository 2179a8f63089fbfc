"""Owner of a source file: the user, a library, or torch and Python.

The profiler cuts a path down to the part after an entry of sys.path, so it begins with
the name of a package. The owner is known from, in this order: the user's setting
(``--own``, ``own-code``), the location (site-packages), the packages that ``traceq
collect`` saw in the process, and the names below.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    import polars as pl

# Libraries that call operators: what they do is not the user's to change, and a place
# in them needs the user's line that called them.
_CALL_OPERATORS = """
    accelerate apex bitsandbytes botorch deepspeed detectron2 dgl diffusers einops
    fairscale fairseq fastai fbgemm_gpu flash_attn flash_attn_interface flashinfer
    gpytorch horovod ignite keras kornia lightning lightning_fabric liger_kernel
    linear_operator megatron mmcv mmdet mmengine monai open_clip opacus peft pyro
    pytorch_lightning pytorch_metric_learning pytorch3d ray safetensors
    segmentation_models_pytorch sentence_transformers sglang speechbrain
    stable_baselines3 tensorboardX tensordict timm torch_ema torch_geometric
    torch_scatter torch_sparse torchao torchaudio torchdata torchdiffeq torchmetrics
    torchrec torchrl torchsde torchtext torchtune torchvision transformer_engine
    transformers trl ultralytics unsloth vllm wandb webdataset xformers
""".split()  # noqa: SIM905 - as a list it is a page long
# Libraries that work on the host and have no module: one of these names in which a
# forward runs is a package of the user's.
_CALL_NONE = """
    IPython PIL _pytest absl aiohttp attr attrs boto3 botocore click cloudpickle cupy
    cv2 dill filelock fsspec grpc huggingface_hub hydra ipykernel jax joblib
    jsonargparse jupyter_client lightning_utilities matplotlib mlflow mpmath networkx
    nltk numba numpy nvtx omegaconf pandas pkg_resources pluggy polars psutil pyarrow
    pydantic pynvml pytest requests rich s3fs scipy sentencepiece setuptools sklearn
    spacy sympy tensorboard tensorflow tiktoken tokenizers tornado tqdm traitlets typer
    urllib3 yaml zmq
""".split()  # noqa: SIM905 - as a list it is a page long
_TORCH = ("torch", "functorch", "caffe2", "triton")
# Names of the standard library that people give to files of their own.
_OWN_NAMES = {"code", "cmd", "profile", "test", "trace", "statistics", "this", "site"}
_STDLIB_MODULES = sorted(sys.stdlib_module_names - _OWN_NAMES)
_STDLIB_PACKAGES = """
    asyncio collections concurrent ctypes email encodings html http importlib json
    logging multiprocessing pathlib re sqlite3 sysconfig unittest urllib xml zoneinfo
""".split()  # noqa: SIM905 - as a list it is a page long
LIBRARIES = frozenset((*_CALL_OPERATORS, *_CALL_NONE, *_TORCH, *_STDLIB_PACKAGES))
"""Names of packages that are not the user's own, unless more is known of them."""
RECORDER_FILE = (
    r"(^|/)(collect/(agent|shared|bootstrap|inline|callbacks|trial|remedies)"
    r"/[0-9A-Za-z_]+|traceq/(api/profile|testing/step))\.py$"
)
"""The code of ``traceq collect`` that runs in the profiled program."""
GENERATED_FILE = r"(^|/)[a-z2-7]{2}/c[a-z2-7]{51}\.py$"
"""Pattern of the files that inductor generates, wherever its cache is."""
_INSTALLED = r"^.*/(site|dist)-packages/"
_LIBRARY_PATH = r"/(site|dist)-packages/|/lib/python[0-9]"
# Files that torch_geometric generates for its layers, under invented names.
_WRITTEN = r"^(.*/)?torch_geometric\.([^/]+)_[0-9a-z_]{8}\.py$"
# Paths of Python's library: a package, or a file.
_STDLIB = [
    *(f"{package}/" for package in _STDLIB_PACKAGES),
    *(f"{module}.py" for module in _STDLIB_MODULES),
]
_UNDER = ("^([^/]+(?:/|\\.py$))", "/lib/python[0-9.]+/([^/]+(?:/|\\.py$))")
# Torch itself and what is no file: never anybody else's.
_TORCH_FILE = (
    rf"^<|^({'|'.join(_TORCH)})/|^/tmp/torchinductor|{RECORDER_FILE}|{GENERATED_FILE}"
    r"|/torch/(nn|optim|autograd|utils|cuda|profiler|distributed|fx|_[0-9A-Za-z_]+|functional)[./]"
)
# The package, or the module, that a path begins with.
_NAME = r"^([^/]+?)(?:\.py)?(?:/|$)"
_FORWARD = "forward"


class Owners(Struct, frozen=True):
    """Names of packages and modules, by who they are known to belong to."""

    said: frozenset[str] = frozenset()
    """The user says that they are his own."""
    own: frozenset[str] = frozenset()
    """Seen under the program's repository or beside its script."""
    installed: frozenset[str] = frozenset()
    """Seen among the installed packages, or in Python's own library."""

    @property
    def key(self) -> str:
        """Return a key that identifies these owners; empty where nothing is known."""
        parts = [sorted(names) for names in (self.said, self.own, self.installed)]
        return repr(parts) if any(parts) else ""


NOBODY = Owners()


def is_own(
    file: pl.Expr, owners: Owners = NOBODY, function: pl.Expr | None = None
) -> pl.Expr:
    """Return for each source file whether it is the user's own, not a library's.

    With the functions, all of a trace's at once, a package that has the name of a
    library without modules is the user's if a ``forward`` is in it.
    """
    short = _short(file)
    return _is_own(file, short, _name(short), owners, function)


def owned(places: pl.DataFrame, owners: Owners = NOBODY) -> pl.DataFrame:
    """Return places with whether they are the user's ``own``, and their ``library``.

    As ``is_own`` and ``third_party`` return it, but what both ask is found once.
    """
    import polars as pl  # noqa: PLC0415 - who owns what is known without any table

    file, short, package = map(pl.col, ("file", "_short", "_package"))
    return (
        places.with_columns(_short(file).alias("_short"))
        .with_columns(_name(short).alias("_package"))
        .with_columns(own=_is_own(file, short, package, owners, pl.col("function")))
        .with_columns(library=_third_party(short, pl.col("own")))
        .drop("_short", "_package")
    )


def _short(file: pl.Expr) -> pl.Expr:
    """Return files without where packages are installed."""
    return file.str.replace(_INSTALLED, "").str.replace(
        _WRITTEN, "torch_geometric/$2.py"
    )


def _name(short: pl.Expr) -> pl.Expr:
    """Return the packages, or modules, that files are of."""
    return short.str.extract(_NAME).fill_null("")


def _is_own(
    file: pl.Expr,
    short: pl.Expr,
    name: pl.Expr,
    owners: Owners,
    function: pl.Expr | None,
) -> pl.Expr:
    import polars as pl  # noqa: PLC0415 - as above

    in_package = short.str.contains("/", literal=True)
    quiet = in_package & name.is_in(_CALL_NONE)
    if function is not None:
        runs = (function == _FORWARD).fill_null(value=False)
        quiet &= ~runs.any().over(name)
    declared, own, installed = (
        name.is_in(known) if known else pl.lit(value=False)
        for known in (owners.said, owners.own, owners.installed)
    )
    library = (in_package & name.is_in(_CALL_OPERATORS)) | quiet
    return (
        pl.when(file.is_null() | file.str.contains(_TORCH_FILE))
        .then(declared & ~file.str.starts_with("<"))
        .when(declared)
        .then(statement=True)
        .when(file.str.contains(_LIBRARY_PATH))
        .then(statement=False)
        .when(own)
        .then(statement=True)
        .when(_is_stdlib(file) | installed)
        .then(statement=False)
        .otherwise(~library)
        .fill_null(value=False)
    )


def third_party(file: pl.Expr, own: pl.Expr) -> pl.Expr:
    """Return the files of libraries other than torch and Python, as in the package.

    >>> import polars as pl
    >>> files = ["/env/lib/python3.11/site-packages/peft/b.py", "torch/x.py", "a.py"]
    >>> file = pl.col("file")
    >>> pl.DataFrame({"file": files}).select(third_party(file, is_own(file))).item(0, 0)
    'peft/b.py'
    """
    return _third_party(_short(file), own)


def _third_party(short: pl.Expr, own: pl.Expr) -> pl.Expr:
    import polars as pl  # noqa: PLC0415 - as above

    runtime = short.str.contains(_TORCH_FILE) | _is_stdlib(short)
    return pl.when(~own & ~runtime).then(short)


@cache
def _stdlib() -> pl.Series:
    """Return the paths of Python's standard library, as a list in one row."""
    import polars as pl  # noqa: PLC0415 - as above

    return pl.Series(_STDLIB).implode()


def _is_stdlib(file: pl.Expr) -> pl.Expr:
    """Return whether files are of Python's own library."""
    known = _stdlib()
    under, below = (file.str.extract(pattern).is_in(known) for pattern in _UNDER)
    return under.fill_null(value=False) | below.fill_null(value=False)
