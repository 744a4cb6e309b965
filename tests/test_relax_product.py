"""Products of two tensors of rank 2 or more, as in attention."""

import pytest
import tvm
from relax_testing import axes, check, module, no_text, run_pass, tensor, text
from tvm import relax
from tvm.script import relax as R
from tvm.script import tirx as T

SAME2, SAME3, SAME4 = axes(0, 1), axes(0, 1, 2), axes(0, 1, 2, 3)
ROW, COLUMN, COLUMNS, NONE = axes(None, 0), axes(0, None), axes(0, 1, None), axes(None, None)
HEADS_OUT, TRANSPOSED = axes(0, 2, 1, 3), axes(0, 2, 3, 1)
SWAPPED3, SWAPPED2 = axes(0, 2, 1), axes(1, 0)


def test_attention_folds_all_permutes():
    @R.function
    def before(
        q: R.Tensor(("b", "s", 12, 32), "float32"),
        k: R.Tensor(("b", "s", 12, 32), "float32"),
        v: R.Tensor(("b", "s", 12, 32), "float32"),
    ):
        with R.dataflow():
            qt = R.permute_dims(q, axes=[0, 2, 1, 3])
            kt = R.permute_dims(k, axes=[0, 2, 3, 1])
            vt = R.permute_dims(v, axes=[0, 2, 1, 3])
            scores = R.matmul(qt, kt)
            p = R.nn.softmax(scores, axis=-1)
            y = R.matmul(p, vt)
            out = R.permute_dims(y, axes=[0, 2, 1, 3])
            R.output(out)
        return out

    @R.function
    def expected(
        q: R.Tensor(("b", "s", 12, 32), "float32"),
        k: R.Tensor(("b", "s", 12, 32), "float32"),
        v: R.Tensor(("b", "s", 12, 32), "float32"),
    ):
        b, s = T.int64(), T.int64()
        with R.dataflow():
            scores = R.call_dps_packed(
                "moonpoly_matmul_f32",
                (
                    q,
                    k,
                    R.prim_value(HEADS_OUT),
                    R.prim_value(TRANSPOSED),
                    R.prim_value(SAME4),
                    no_text,
                ),
                out_ty=R.Tensor((b, 12, s, s), "float32"),
            )
            p = R.nn.softmax(scores, axis=-1)
            out = R.call_dps_packed(
                "moonpoly_matmul_f32",
                (
                    p,
                    v,
                    R.prim_value(SAME4),
                    R.prim_value(HEADS_OUT),
                    R.prim_value(HEADS_OUT),
                    no_text,
                ),
                out_ty=R.Tensor((b, s, 12, 32), "float32"),
            )
            R.output(out)
        return out

    assert check(before, expected) == [
        "product, permute_dims of a, b folded",
        "product, permute_dims of b, output folded",
    ]


def test_permutes_are_composed():
    @R.function
    def before(
        q: R.Tensor(("b", "s", 12, 32), "float32"), k: R.Tensor(("b", "s", 12, 32), "float32")
    ):
        q1 = R.permute_dims(q, axes=[0, 2, 1, 3])
        k1 = R.permute_dims(k, axes=[0, 2, 1, 3])
        k2 = R.permute_dims(k1, axes=[0, 1, 3, 2])
        y = R.matmul(q1, k2)
        return y

    @R.function
    def expected(
        q: R.Tensor(("b", "s", 12, 32), "float32"), k: R.Tensor(("b", "s", 12, 32), "float32")
    ):
        b, s = T.int64(), T.int64()
        y = R.call_dps_packed(
            "moonpoly_matmul_f32",
            (q, k, R.prim_value(HEADS_OUT), R.prim_value(TRANSPOSED), R.prim_value(SAME4), no_text),
            out_ty=R.Tensor((b, 12, s, s), "float32"),
        )
        return y

    check(before, expected)


def test_transposed_operands():
    @R.function
    def before(x: R.Tensor(("h", 16, "m"), "float32"), w: R.Tensor(("h", "n", 16), "float32")):
        xt = R.permute_dims(x, axes=[0, 2, 1])
        wt = R.permute_dims(w, axes=[0, 2, 1])
        y = R.matmul(xt, wt)
        return y

    @R.function
    def expected(x: R.Tensor(("h", 16, "m"), "float32"), w: R.Tensor(("h", "n", 16), "float32")):
        h, m, n = T.int64(), T.int64(), T.int64()
        y = R.call_dps_packed(
            "moonpoly_matmul_f32",
            (x, w, R.prim_value(SWAPPED3), R.prim_value(SWAPPED3), R.prim_value(SAME3), no_text),
            out_ty=R.Tensor((h, m, n), "float32"),
        )
        return y

    assert check(before, expected) == ["product, permute_dims of a, b folded"]


def test_permutes_that_leave_no_unit_stride_stay():
    @R.function
    def before(x: R.Tensor(("m", 16, "h"), "float32"), w: R.Tensor(("n", 16, "h"), "float32")):
        xt = R.permute_dims(x, axes=[2, 0, 1])  # unit stride in the batch
        wt = R.permute_dims(w, axes=[2, 1, 0])
        y = R.matmul(xt, wt)
        z = R.permute_dims(y, axes=[0, 2, 1])  # would be stored with unit stride in m
        return z

    @R.function
    def expected(x: R.Tensor(("m", 16, "h"), "float32"), w: R.Tensor(("n", 16, "h"), "float32")):
        h, m, n = T.int64(), T.int64(), T.int64()
        xt = R.permute_dims(x, axes=[2, 0, 1])
        wt = R.permute_dims(w, axes=[2, 1, 0])
        y = R.call_dps_packed(
            "moonpoly_matmul_f32",
            (xt, wt, R.prim_value(SAME3), R.prim_value(SAME3), R.prim_value(SAME3), no_text),
            out_ty=R.Tensor((h, m, n), "float32"),
        )
        z = R.permute_dims(y, axes=[0, 2, 1])
        return z

    assert check(before, expected) == ["product"]


def test_folds_the_part_of_a_chain_that_has_a_unit_stride():
    @R.function
    def before(x: R.Tensor(("h", "m", 16), "float32"), w: R.Tensor((16, "n", "h"), "float32")):
        w1 = R.permute_dims(w, axes=[2, 1, 0])
        w2 = R.permute_dims(w1, axes=[0, 2, 1])
        y = R.matmul(x, w2)
        return y

    @R.function
    def expected(x: R.Tensor(("h", "m", 16), "float32"), w: R.Tensor((16, "n", "h"), "float32")):
        h, m, n = T.int64(), T.int64(), T.int64()
        w1 = R.permute_dims(w, axes=[2, 1, 0])
        y = R.call_dps_packed(
            "moonpoly_matmul_f32",
            (x, w1, R.prim_value(SAME3), R.prim_value(SWAPPED3), R.prim_value(SAME3), no_text),
            out_ty=R.Tensor((h, m, n), "float32"),
        )
        return y

    check(before, expected)


def test_two_symbols_of_the_contraction_are_checked_at_run_time():
    @R.function
    def before(a: R.Tensor(("m", "k1"), "float32"), b: R.Tensor(("k2", "n"), "float32")):
        y = R.matmul(a, b)
        return y

    after, report = run_pass(module(before))
    assert [entry.action for entry in report] == ["rewritten"]


def test_weight_that_is_a_parameter():
    @R.function
    def before(x: R.Tensor(("b", "s", 8), "float32"), w: R.Tensor((16, 8), "float32")):
        t = R.permute_dims(w)
        y = R.matmul(x, t)
        return y

    @R.function
    def expected(x: R.Tensor(("b", "s", 8), "float32"), w: R.Tensor((16, 8), "float32")):
        b, s = T.int64(), T.int64()
        y = R.call_dps_packed(
            "moonpoly_matmul_f32",
            (x, w, R.prim_value(SAME3), R.prim_value(SWAPPED2), R.prim_value(SAME3), no_text),
            out_ty=R.Tensor((b, s, 16), "float32"),
        )
        return y

    check(before, expected)


def test_batched_constant():
    stack = relax.const(tensor(12, 8, 24))

    @R.function
    def before(x: R.Tensor((12, "n", 8), "float32")):
        y = R.matmul(x, stack)
        return y

    @R.function
    def expected(x: R.Tensor((12, "n", 8), "float32")):
        n = T.int64()
        y = R.call_dps_packed(
            "moonpoly_matmul_f32",
            (x, stack, R.prim_value(SAME3), R.prim_value(SAME3), R.prim_value(SAME3), no_text),
            out_ty=R.Tensor((12, n, 24), "float32"),
        )
        return y

    check(before, expected)


def test_product_stored_permuted_is_read_as_it_is_stored():
    @R.function
    def before(x: R.Tensor(("s", "s", "s"), "float32")):
        y = R.matmul(x, x)
        t = R.permute_dims(y, axes=[1, 0, 2])
        z = R.matmul(t, t)
        return z

    @R.function
    def expected(x: R.Tensor(("s", "s", "s"), "float32")):
        s = T.int64()
        t = R.call_dps_packed(
            "moonpoly_matmul_f32",
            (x, x, R.prim_value(SAME3), R.prim_value(SAME3), R.prim_value(axes(1, 0, 2)), no_text),
            out_ty=R.Tensor((s, s, s), "float32"),
        )
        z = R.call_dps_packed(
            "moonpoly_matmul_f32",
            (t, t, R.prim_value(SAME3), R.prim_value(SAME3), R.prim_value(SAME3), no_text),
            out_ty=R.Tensor((s, s, s), "float32"),
        )
        return z

    check(before, expected)


def test_dataflow_variable_of_another_block_is_not_reached_for():
    @R.function
    def before(x: R.Tensor(("h", "m", 16), "float32"), w: R.Tensor(("h", "n", 16), "float32")):
        with R.dataflow():
            e = R.exp(w)
            t = R.permute_dims(e, axes=[0, 2, 1])
            R.output(t)
        u = R.permute_dims(t, axes=[0, 2, 1])
        v = R.permute_dims(u, axes=[0, 2, 1])
        y = R.matmul(x, v)
        return y

    @R.function
    def expected(x: R.Tensor(("h", "m", 16), "float32"), w: R.Tensor(("h", "n", 16), "float32")):
        h, m, n = T.int64(), T.int64(), T.int64()
        with R.dataflow():
            e = R.exp(w)
            t = R.permute_dims(e, axes=[0, 2, 1])
            R.output(t)
        y = R.call_dps_packed(
            "moonpoly_matmul_f32",
            (x, t, R.prim_value(SAME3), R.prim_value(SAME3), R.prim_value(SAME3), no_text),
            out_ty=R.Tensor((h, m, n), "float32"),
        )
        return y

    check(before, expected)


def test_batch_dims_of_two_symbols():
    @R.function
    def before(x: R.Tensor(("h", "m", 16), "float32"), w: R.Tensor(("g", 16, "n"), "float32")):
        y = R.matmul(x, w)
        return y

    @R.function
    def expected(x: R.Tensor(("h", "m", 16), "float32"), w: R.Tensor(("g", 16, "n"), "float32")):
        h, g, m, n = T.int64(), T.int64(), T.int64(), T.int64()
        batch = T.int64()
        p = R.call_dps_packed(
            "moonpoly_matmul_f32",
            (x, w, R.prim_value(SAME3), R.prim_value(SAME3), R.prim_value(SAME3), no_text),
            out_ty=R.Tensor((T.Select(h == 1, g, h), m, n), "float32"),
        )
        c = R.match_cast(p, R.Tensor((batch, m, n), "float32"))
        y = c
        return y

    check(before, expected)


def test_ranks_alone():
    names = text("matmul (x_0, x_1) x (w_0, w_1, w_2): x_1 = #, w_1 = #")

    @R.function
    def before(x: R.Tensor(ndim=2, dtype="float32"), w: R.Tensor(ndim=3, dtype="float32")):
        y = R.matmul(x, w)
        return y

    @R.function
    def expected(x: R.Tensor(ndim=2, dtype="float32"), w: R.Tensor(ndim=3, dtype="float32")):
        m, k, b, j, n = T.int64(), T.int64(), T.int64(), T.int64(), T.int64()
        _x = R.match_cast(x, R.Tensor((m, k), "float32"))
        _w = R.match_cast(w, R.Tensor((b, j, n), "float32"))
        y = R.call_dps_packed(
            "moonpoly_matmul_f32",
            (x, w, R.prim_value(SAME2), R.prim_value(SAME3), R.prim_value(SAME3), names),
            out_ty=R.Tensor((b, m, n), "float32"),
        )
        return y

    check(before, expected)


def test_vectors():
    @R.function
    def before(
        x: R.Tensor(("k",), "float32"),
        w: R.Tensor(("k", "n"), "float32"),
        v: R.Tensor(("b", "n", "k"), "float32"),
    ):
        y = R.matmul(x, w)
        z = R.matmul(x, x)
        u = R.matmul(v, x)
        return (y, z, u)

    @R.function
    def expected(
        x: R.Tensor(("k",), "float32"),
        w: R.Tensor(("k", "n"), "float32"),
        v: R.Tensor(("b", "n", "k"), "float32"),
    ):
        b, n = T.int64(), T.int64()
        y = R.call_dps_packed(
            "moonpoly_matmul_f32",
            (x, w, R.prim_value(ROW), R.prim_value(SAME2), R.prim_value(ROW), no_text),
            out_ty=R.Tensor((n,), "float32"),
        )
        z = R.call_dps_packed(
            "moonpoly_matmul_f32",
            (x, x, R.prim_value(ROW), R.prim_value(COLUMN), R.prim_value(NONE), no_text),
            out_ty=R.Tensor((), "float32"),
        )
        u = R.call_dps_packed(
            "moonpoly_matmul_f32",
            (v, x, R.prim_value(SAME3), R.prim_value(COLUMN), R.prim_value(COLUMNS), no_text),
            out_ty=R.Tensor((b, n), "float32"),
        )
        return (y, z, u)

    check(before, expected)


@pytest.mark.parametrize(("rank", "count"), [(8, 1), (9, 0)])
def test_rank_limit(rank, count):
    n = tvm.tirx.Var("n", "int64")
    shape = [2] * (rank - 2) + [n, n]
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.op.matmul(x, x)))
    _, report = run_pass(builder.get())
    assert len(report.rewritten) == count
