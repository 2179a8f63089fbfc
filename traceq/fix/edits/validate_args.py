"""``validate_args=False`` for distributions whose checks make the host wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from traceq.fix.edit import RefusedError
from traceq.fix.program import only
from traceq.fix.syntax import (
    is_literal,
    keyword,
    positional,
    refuse_stars,
    with_keyword,
)

if TYPE_CHECKING:
    from traceq.fix.edit import Replacement
    from traceq.fix.program import Program
    from traceq.fix.syntax import Code
    from traceq.model.finding import Finding

_PACKAGE = "torch.distributions."
# Arguments before validate_args; of every other class two.
_BEFORE = {
    **dict.fromkeys(("Chi2", "Dirichlet", "Exponential", "HalfCauchy"), 1),
    **dict.fromkeys(("HalfNormal", "Poisson"), 1),
    **dict.fromkeys(("Binomial", "ContinuousBernoulli", "Multinomial"), 3),
    **dict.fromkeys(("NegativeBinomial", "RelaxedBernoulli", "StudentT"), 3),
    **dict.fromkeys(("LowRankMultivariateNormal", "RelaxedOneHotCategorical"), 3),
    **dict.fromkeys(("MultivariateNormal", "Wishart"), 4),
}
_CLASSES = frozenset(
    (
        *_BEFORE,
        *("Bernoulli", "Beta", "Categorical", "Cauchy", "FisherSnedecor", "Gamma"),
        *("Geometric", "Gumbel", "Independent", "InverseGamma", "Kumaraswamy"),
        *("LKJCholesky", "Laplace", "LogNormal", "LogisticNormal", "Normal"),
        *("MixtureSameFamily", "OneHotCategorical", "Pareto", "Uniform", "VonMises"),
        *("OneHotCategoricalStraightThrough", "TransformedDistribution", "Weibull"),
    )
)
_NAMED = "validate_args=False"


def edit(program: Program, finding: Finding) -> list[Replacement]:
    """Return the constructors at the line of the finding, without their checks."""
    if _NAMED not in finding.advice:
        msg = "the wait is not for the check of a distribution's arguments"
        raise RefusedError(msg)
    code = program.code(finding)
    here = code.at(finding.place)
    calls = [call for call in here if _is_distribution(code, call)]
    if not calls:
        calls = [_constructor(code, here)]
    return [replacement for call in calls for replacement in _unchecked(code, call)]


def _is_distribution(code: Code, call: cst.Call) -> bool:
    name = code.name(call.func)
    return name.startswith(_PACKAGE) and name.rpartition(".")[2] in _CLASSES


def _constructor(code: Code, here: list[cst.Call]) -> cst.Call:
    """Return the constructor of the one variable whose methods are called at a line."""
    names = {
        code.written(call.func.value)
        for call in here
        if isinstance(call.func, cst.Attribute)
        and isinstance(call.func.value, cst.Name)
    }
    around = {code.function(call) for call in here}
    made = [
        (code, call)
        for call in code.calls
        if _is_distribution(code, call)
        and code.target(call) in names
        and code.function(call) in around
    ]
    return only(made, "constructor of a distribution", "the line")[1]


def _unchecked(code: Code, call: cst.Call) -> list[Replacement]:
    refuse_stars(code, call)
    arg = keyword(call, "validate_args")
    name = code.name(call.func).rpartition(".")[2]
    if arg is None and len(positional(call)) > _BEFORE.get(name, 2):
        msg = f"`{code.written(call)}` passes validate_args by position"
        raise RefusedError(msg)
    if arg is None:
        return with_keyword(code, call, "validate_args", "False")
    if not is_literal(arg, "True", "None"):
        msg = f"`{code.written(arg)}` is there already"
        raise RefusedError(msg)
    return [code.replaced(arg, _NAMED)]
