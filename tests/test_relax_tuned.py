"""Whether MetaSchedule's database has a record for a static matmul."""

import contextlib
import sys

import numpy as np
import pytest
import tvm
from relax_testing import TARGET, module, tensor
from tvm import relax, s_tir
from tvm.s_tir import meta_schedule as ms
from tvm.script import relax as R

from relax_passes import PolymerizeDynamicOps, Report, pipeline
from relax_passes.bindings import analyze
from relax_passes.tuned import has_record

weight, bias = relax.const(tensor(8, 24)), relax.const(tensor(24))


@R.function
def layer(x: R.Tensor((4, 8), "float32"), residual: R.Tensor((4, 24), "float32")):
    with R.dataflow():
        y = R.matmul(x, weight)
        z = R.add(y, bias)
        u = R.nn.relu(z)
        v = R.add(u, residual)
        R.output(v)
    return v


@R.function
def alone(x: R.Tensor((4, 8), "float32")):
    y = R.matmul(x, weight)
    return y


@R.function
def scaled(x: R.Tensor((2, 4, 8), "float32"), w: R.Tensor((8, 24), "float32")):
    with R.dataflow():
        y = R.matmul(x, w)
        z = R.multiply(y, R.const(0.5, "float32"))
        R.output(z)
    return z


@R.function
def dynamic(x: R.Tensor(("n", 8), "float32")):
    y = R.matmul(x, weight)
    return y


def values(func):
    return list(analyze(func).value.items())


def tune(database, func):
    """A record, as tuning would leave it, for the function that TVM makes of `func`."""
    with TARGET:
        fused = relax.get_pipeline("zero")(module(func))
    (task,) = ms.relax_integration.extract_tasks(fused, TARGET)
    (workload,) = task.dispatched
    schedule = s_tir.Schedule(workload)
    schedule.split(schedule.get_loops(schedule.get_sblock("matmul"))[-1], [None, 4])
    info = ms.arg_info.ArgInfo.from_prim_func(workload["main"])
    committed = database.commit_workload(workload)
    record = ms.database.TuningRecord(schedule.trace, committed, [1e-6], TARGET, info)
    database.commit_tuning_record(record)


def scheduled(func):
    """The functions that TVM schedules by the database in context."""
    with TARGET:
        mod = relax.get_pipeline("zero")(module(func))
    return [
        gv.name_hint for gv, f in mod.functions_items() if (f.attrs or {}).get("tirx.is_scheduled")
    ]


def test_without_a_database():
    assert not has_record(values(layer), TARGET)


def test_an_empty_database():
    with ms.database.MemoryDatabase() as database:
        assert not has_record(values(layer), TARGET)
    assert len(database.get_all_tuning_records()) == 0


@pytest.mark.parametrize("func", [layer, alone, scaled], ids=["layer", "alone", "scaled"])
def test_the_function_that_tvm_makes(func):
    database = ms.database.MemoryDatabase()
    tune(database, func)
    with database:
        assert len(scheduled(func)) == 1
        assert has_record(values(func), TARGET)


def test_only_of_as_many_operators_as_were_tuned():
    database = ms.database.MemoryDatabase()
    tune(database, layer)
    with database:
        assert not has_record(values(layer)[:3], TARGET)
        assert not has_record(values(alone), TARGET)
        assert not has_record(values(scaled), TARGET)


def test_of_the_matmul_alone_whatever_follows():
    database = ms.database.MemoryDatabase()
    tune(database, alone)
    with database:
        assert has_record(values(alone), TARGET)
        assert has_record(values(layer), TARGET)


def test_another_shape():
    @R.function
    def wider(x: R.Tensor((5, 8), "float32")):
        y = R.matmul(x, weight)
        return y

    database = ms.database.MemoryDatabase()
    tune(database, alone)
    with database:
        assert not has_record(values(wider), TARGET)
        assert not has_record(values(dynamic), TARGET)


def test_files_of_a_folder(tmp_path):
    tune(ms.database.JSONDatabase(work_dir=str(tmp_path)), layer)
    with ms.database.JSONDatabase(work_dir=str(tmp_path)):
        assert has_record(values(layer), TARGET)
        before = (tmp_path / "database_workload.json").read_text()
        assert not has_record(values(alone), TARGET)
        assert (tmp_path / "database_workload.json").read_text() == before
    assert not has_record(values(layer), TARGET)


def test_a_database_that_is_a_schedule_function():
    """It holds no records, but schedules what it likes."""
    likes = ms.database.ScheduleFnDatabase(lambda schedule: True)
    with likes:
        assert has_record(values(layer), TARGET)
    with ms.database.ScheduleFnDatabase(lambda schedule: False):
        assert not has_record(values(layer), TARGET)


def test_tensors_and_the_input_are_untouched():
    before = np.copy(weight.value.numpy())
    mod = module(layer)
    with ms.database.MemoryDatabase():
        has_record(values(mod["main"]), TARGET)
    tvm.ir.assert_structural_equal(mod, module(layer))
    np.testing.assert_array_equal(weight.value.numpy(), before)


def test_the_intrinsics_which_take_a_minute_are_not_imported():
    before = "tvm.s_tir.tensor_intrin" in sys.modules
    with ms.database.MemoryDatabase():
        has_record(values(layer), TARGET)
    assert ("tvm.s_tir.tensor_intrin" in sys.modules) == before


@pytest.mark.parametrize("func", [layer, alone, scaled], ids=["layer", "alone", "scaled"])
def test_static_matmuls_with_a_record_are_left(func):
    database = ms.database.MemoryDatabase()
    tune(database, func)
    original = module(func)
    for tuned in (True, False):
        report = Report()
        with database if tuned else contextlib.nullcontext():
            after = PolymerizeDynamicOps(TARGET, report, static=True)(original)
        assert after.same_as(original) == tuned
        details = [entry.detail for entry in report.left]
        assert details == (["tuned: the database has a record"] if tuned else [])


def test_dynamic_matmuls_are_not_looked_up(monkeypatch):
    monkeypatch.setattr(ms.database.MemoryDatabase, "query_tuning_record", pytest.fail)
    report = Report()
    with ms.database.MemoryDatabase():
        PolymerizeDynamicOps(TARGET, report, static=True)(module(dynamic))
    assert len(report.rewritten) == 1


@tvm.ir.instrument.pass_instrument
class Names:
    """The names of the passes that were run."""

    def __init__(self):
        self.names = []

    def run_before_pass(self, _mod, info):
        self.names.append(info.name)


@pytest.mark.parametrize("tuned", [True, False])
def test_the_pipeline_applies_the_database(tuned):
    database, names = ms.database.MemoryDatabase(), Names()
    tune(database, layer)
    with (
        database if tuned else contextlib.nullcontext(),
        tvm.transform.PassContext(instruments=[names]),
    ):
        executable = tvm.compile(
            module(layer), TARGET, relax_pipeline=pipeline(TARGET, static=True)
        )
    assert ("MetaScheduleApplyDatabase" in names.names) == tuned
    x, residual = tensor(4, 8), tensor(4, 24)
    got = relax.VirtualMachine(executable, tvm.cpu())["main"](
        tvm.runtime.tensor(x), tvm.runtime.tensor(residual)
    ).numpy()
    expected = np.maximum(x @ tensor(8, 24) + tensor(24), 0) + residual
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
