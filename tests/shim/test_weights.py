"""Where weights are read: refused is what really comes out wrong, and nothing else.

Real ranks write the weights of an MLP with ``dist_checkpointing.save`` and others read them, once without the hooks,
which says what is right, and once with them.
"""

from __future__ import annotations

import importlib.machinery
import logging
import sys
import types

import pytest
from bridge_machine import ranks, weights
from bridge_machine.weights import Mlp
from torch.distributed.checkpoint import CheckpointException

from gtp_migrate import shim
from gtp_migrate.shards import DENSE
from gtp_migrate.shim.weights import Cut, Topology, _refuse, _wrong

SIZES = [(1, 1), (2, 1), (4, 1), (2, 2), (1, 4)]

KINDS = {
    "gated": {},
    "not gated": {"gated": False},
    "gated padded": {"alignment": 4},
    "not gated padded": {"gated": False, "alignment": 4},
    "experts": {"expert": True},
    "adapters": {"adapters": True},
}
CASES = [(kind, written, read) for read in SIZES for kind in KINDS for written in SIZES]


def mlp(kind, sizes, **kwargs):
    return Mlp(tp=sizes[0], gtp=sizes[1], **KINDS[kind], **kwargs)


def write_all(rank, folders):
    for (kind, sizes), folder in folders.items():
        weights.write(rank, mlp(kind, sizes), folder)


def answer(rank, reader, folder, **option):
    """With the hooks: whether the rows are right, or why they were not read; and the warnings."""
    said = []
    logging.getLogger("gtp_migrate.shim").addHandler(handler := logging.Handler())
    handler.emit = lambda record: said.append(record.getMessage())
    try:
        with shim.installed(**option):
            return weights.read(rank, reader, folder), said
    except shim.GTPReshardError as error:
        return str(error), said
    except (Exception, CheckpointException) as error:
        return type(error).__name__, said
    finally:
        logging.getLogger("gtp_migrate.shim").removeHandler(handler)
        shim.uninstall()


def plain(rank, reader, folder):
    try:
        return weights.read(rank, reader, folder)
    except (Exception, CheckpointException) as error:  # Core itself refuses another shape, unless told to allow it
        return type(error).__name__


def read_all(rank, cases):
    return [(plain(rank, reader, folder), *answer(rank, reader, folder)) for reader, folder in cases]


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """Every checkpoint, written by four ranks: where the weights are cut in two, there are replicas."""
    root = tmp_path_factory.mktemp("weights")
    folders = {(k, s): ranks.folder(root, f"{k}_{s[0]}_{s[1]}".replace(" ", "_")) for s in SIZES for k in KINDS}
    ranks.run(4, write_all, folders)
    for (kind, sizes), folder in folders.items():
        if kind == "adapters":  # Bridge writes it beside adapters too
            with open(f"{folder}/run_config.yaml", "w") as file:
                file.write(f"model: {{tensor_model_parallel_size: {sizes[0]}, gated_linear_unit: true}}\n")
    return folders


@pytest.fixture(scope="session")
def outcomes(folders):
    """For each case: without the hooks, with them, and what they said; over all ranks."""
    found = {}
    for world_size in (1, 2, 4):
        cases = [case for case in CASES if case[2][0] * case[2][1] == world_size]
        reads = [(mlp(kind, read), folders[kind, written]) for kind, written, read in cases]
        for case, per_rank in zip(cases, zip(*ranks.run(world_size, read_all, reads), strict=True), strict=True):
            without, with_hooks, said = zip(*per_rank, strict=True)
            found[case] = set(without), set(with_hooks), said
    return found


@pytest.mark.parametrize("case", CASES, ids=str)
def test_refused_is_what_comes_out_wrong(outcomes, case):
    without, with_hooks, said = outcomes[case]
    assert not any(said), "nothing is in doubt here"
    if without == {True}:
        assert with_hooks == {True}
    else:
        (message,) = with_hooks  # the same on every rank: none is left waiting
        assert type(message) is str
        if "Exception" in message[:25]:
            assert without == {message}
        else:
            assert "Ways out" in message


def test_the_facts_are_such_that_both_happen(outcomes):
    wrong = [case for case, (without, *_) in outcomes.items() if False in without]
    assert {kind for kind, *_ in wrong} >= {"gated", "gated padded", "not gated padded", "experts", "adapters"}
    assert {kind for kind, (without, *_) in ((c[0], o) for c, o in outcomes.items()) if without == {True}} == {*KINDS}
    assert outcomes["not gated", (2, 2), (1, 1)][0] == {True}
    assert outcomes["gated", (1, 1), (4, 1)][1] == {True}, "as a run that starts from an import"


@pytest.mark.parametrize(
    ("written", "read", "parts"),
    [
        ((1, 1), (2, 2), ("import from HF", "TP 1 and no GTP", "run without GTP")),
        ((2, 2), (1, 1), ("export", "TP 2 and GTP size 2", "tensor_parallel_num_weight_shards: 4")),
        ((2, 2), (1, 4), ("another shape", "TP 1 and GTP size 4", "tensor_model_parallel_size: 2")),
    ],
)
def test_the_message_names_the_case_and_ways_out_that_work_there(outcomes, folders, written, read, parts):
    (message,) = outcomes["gated", written, read][1]
    for part in (folders["gated", written], "dense", "--allow-reshard", *parts):
        assert part in message
    assert ("tensor_parallel_num_weight_shards: null" in message) == (written == (1, 1))


def read_in_odd_ways(rank, folders):
    def gated(sizes):
        return mlp("gated", sizes)

    from_gtp = gated((1, 1)), folders["gated", (2, 2)]
    found = {"allowed": answer(rank, *from_gtp, allow_gtp_reshard=True)}
    ranks.groups()
    core = types.ModuleType("megatron.core.tensor_parallel.gtp_ckpt")
    core.__spec__ = importlib.machinery.ModuleSpec(core.__name__, None)
    sys.modules[core.__name__] = core
    found["a Core that saves in logical order"] = answer(rank, *from_gtp)
    del sys.modules[core.__name__]
    bridge = types.ModuleType("megatron.bridge.training.gtp")
    bridge._validate_checkpoint_weight_topology = lambda **kwargs: None
    sys.modules[bridge.__name__] = bridge
    found["a Bridge that checks"] = answer(rank, *from_gtp)
    del sys.modules[bridge.__name__]
    found["no TP known"] = answer(rank, mlp("adapters", (1, 1)), folders["no TP"])
    found["logical"] = answer(rank, gated((1, 1)), folders["logical"])
    return found


def write_odd(rank, folders):
    weights.write(rank, mlp("adapters", (2, 2)), folders["no TP"])
    weights.write(rank, mlp("gated", (1, 4), logical=True), folders["logical"])


@pytest.fixture(scope="session")
def odd(folders, tmp_path_factory):
    root = tmp_path_factory.mktemp("odd")
    more = {name: ranks.folder(root, name.replace(" ", "_")) for name in ("no TP", "logical")}
    ranks.run(4, write_odd, more)
    return ranks.run(1, read_in_odd_ways, {**folders, **more})[0]


def test_allowed_it_is_read_with_a_warning(odd):
    rows, said = odd["allowed"]
    assert rows is False
    assert len(said) == 1
    assert said[0].endswith("Read anyway, as asked for.")


def test_a_core_that_saves_in_logical_order_is_not_stopped(odd):
    rows, said = odd["a Core that saves in logical order"]
    assert rows is False, "the hooks let it pass"
    assert len(said) == 1, "but this file an older Core wrote"
    assert odd["logical"] == (True, []), "and what a newer one wrote, this one reads"


def test_out_of_the_way_where_bridge_checks_itself(odd):
    assert odd["a Bridge that checks"] == (False, [])


def test_what_cannot_be_told_is_said_and_read(odd):
    rows, said = odd["no TP known"]
    assert rows is False
    assert len(said) == 1
    assert "cannot be told" in said[0]


def without_groups(rank, folder):
    """A process that never called initialize_model_parallel."""
    reader = mlp("gated", (1, 1))
    weights.groups_of = lambda mlp: None
    return answer(rank, reader, folder)


def test_a_process_without_groups_has_whole_weights(folders):
    assert ranks.run(1, without_groups, folders["gated", (4, 1)])[0] == (True, [])
    assert "Ways out" in ranks.run(1, without_groups, folders["gated", (2, 2)])[0][0]


def test_metadata_that_cannot_be_read_is_no_reason_to_refuse(tmp_path, caplog):
    """As of another format than torch_dist: Core says what is wrong with it."""
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing.core import CheckpointingException

    with shim.installed(), pytest.raises(CheckpointingException):
        dist_checkpointing.load({}, str(tmp_path))
    assert [record.levelno for record in caplog.records if record.name == "gtp_migrate.shim"] == [logging.WARNING]


def test_a_weight_that_cannot_be_told_hides_none_that_is_wrong():
    fc2, odd, gated = Cut(2, 2, 8, 20), Cut(7, 1, 40, 8), Cut(8, 1, 40, 8)
    layers = {"a.linear_fc2.weight": fc2, "a.linear_fc1.weight": odd, "b.linear_fc2.weight": fc2}
    layers["b.linear_fc1.weight"] = gated
    assert _wrong(layers, Topology(1, 1), "a checkpoint", DENSE, {}) == Topology(2, 2)


def test_a_core_that_reads_the_logical_order_is_said_nothing_of_whole_weights(monkeypatch, caplog):
    core = types.ModuleType("megatron.core.tensor_parallel.gtp_ckpt")
    core.__spec__ = importlib.machinery.ModuleSpec(core.__name__, None)
    monkeypatch.setitem(sys.modules, core.__name__, core)
    _refuse("a checkpoint", DENSE, Topology(2, 1), Topology(2, 2))
    assert caplog.records == []
    _refuse("a checkpoint", DENSE, Topology(2, 2), Topology(2, 1))
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
