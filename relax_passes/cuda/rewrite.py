"""Replace matmuls by packed functions that plan and launch CUDA micro-kernels at each call."""

from __future__ import annotations

from functools import cache, partial

import tvm
from tvm import relax
from tvm.relax import Var
from tvm.target import Target

from tvm_moonpoly.operators import encode_axes
from tvm_moonpoly.operators.cuda.library import Matmul, library, unsupported

from ..bindings import analyze
from ..calls import is_permuted, output_axes
from ..epilogue import transposed_store
from ..functions import with_externals, with_rewritten
from ..match import Axes, Left
from ..report import Entry, Report
from ..rewrite import Options, Rebuild, leave_function, matmuls, replace
from ..shapes import known_dims, show
from .constants import with_converted_constants
from .match import Form, Fused, Refusal, as_vector, classify, match_fused, result_of, straight


def polymerize(mod: tvm.IRModule, target: Target, options: Options, report: Report) -> tvm.IRModule:
    """`mod` with its dynamic half-precision matmuls as calls of the operators for `target`, which
    are attached to it; `mod` itself where there are none.

    Raises ValueError where `options` asks for what only CPUs have.
    """
    if options.verify:
        raise ValueError("verify: only calls on CPUs can be compared with TVM's own")
    refusal = cache(partial(unsupported, target))  # reads the tuning logs
    used: set[Matmul] = set()

    def rewrite(func: relax.Function, name: str) -> relax.Function:
        return _rewritten(func, name, mod, refusal, options, report, used)

    new = with_rewritten(mod, rewrite, partial(leave_function, report=report))
    return mod if new.same_as(mod) else with_externals(new, library(target, used))


def _rewritten(
    func: relax.Function,
    name: str,
    mod: tvm.IRModule,
    refusal: Refusal,
    options: Options,
    report: Report,
    used: set[Matmul],
) -> relax.Function:
    """`func`, called `name` in `mod`, rewritten, and the operators that it calls added to `used`;
    itself where nothing is to be rewritten."""
    original, func = func, with_converted_constants(func)
    bindings = analyze(func, mod)
    before = dict(bindings.value)
    for var in matmuls(bindings):
        result = result_of(var, bindings)
        form = classify(var, result, bindings, refusal, options.static)
        shapes = show(*before[var].args)
        if isinstance(form, Left):
            report.add(Entry(name, "matmul", shapes, "left", form.reason))
            continue
        fused = match_fused(result, form, bindings)
        last, axes = fused.last, tuple(range(fused.last.ty.ndim))
        if form.batched and not form.has_vectors:
            last, axes = transposed_store(fused.last, bindings)
        matmul = fused.matmul(form, by_axes=not form.plain or is_permuted(axes))
        used.add(matmul)
        replace(last, _call(matmul, form, fused, result, last, axes), bindings)
        report.add(Entry(name, "matmul", shapes, "rewritten", _detail(form, fused, axes)))
    new = {v: call for v, call in bindings.value.items() if not call.same_as(before[v])}
    if not new:
        return original
    return Rebuild(mod, new, before.keys() - bindings.value.keys()).visit_expr(func)


def _call(
    matmul: Matmul, form: Form, fused: Fused, product: Var, last: Var, axes: Axes
) -> relax.Expr:
    """The call whose result is `last`, of which the stored dims are dims `axes` of the product."""
    args = [form.a.stored, form.b.stored]
    if matmul.by_axes:
        stored = output_axes(axes, form.a.axes, form.b.axes)
        codes = (form.a.axes, form.b.axes, stored)
        args += [relax.prim_value(encode_axes(each)) for each in codes]
    if fused.bias is not None:
        args.append(as_vector(fused.bias, known_dims(product)[-1]))
    if fused.residual is not None:
        args.append(fused.residual)
    return relax.call_dps_packed(matmul.function, args, last.ty)


def _detail(form: Form, fused: Fused, axes: Axes) -> str:
    layout = "NT" if form.transposed else "NN"
    detail = f"{form.dtype_in}, {layout}"
    if not form.plain or is_permuted(axes):
        seen = {"a": form.a.axes, "b": straight(form.b.axes), "output": axes}
        folded = [name for name, each in seen.items() if is_permuted(each)]
        detail += f", permute_dims of {', '.join(folded)} folded" if folded else ", by axes"
    parts = ["bias"] * (fused.bias is not None) + ["residual"] * (fused.residual is not None)
    parts += [fused.activation] * (fused.activation != "none")
    return f"{detail}, fused {' + '.join(parts)}" if parts else detail
