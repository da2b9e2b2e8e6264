"""Ranks of a real gloo world, forked from this process, where everything is imported already.

Saving and building models ask for CUDA here and there, for what a machine without it can do without.
"""

from __future__ import annotations

import logging
import multiprocessing
import queue
import signal
import tempfile
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

for noisy in ("megatron", "torch"):
    logging.getLogger(noisy).setLevel(logging.ERROR)
torch.set_num_threads(1)  # no thread pool, which a fork would not survive


class RankFailed(Exception):
    """A rank raised, or did not answer in time; the message is its traceback."""


def run(world_size: int, function: Any, *args: Any, seconds: float = 120, init: bool = True) -> list[Any]:
    """What ``function(rank, *args)`` returns on each rank.

    Args:
        init: put the process group up first. Without it ``function`` gets the store's path to do it itself.
        seconds: after that a rank counts as hanging.

    Raises:
        RankFailed: a rank raised, or hangs.
    """
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        store = f"file://{folder}/store"
        pipes, processes = [], []
        for rank in range(world_size):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_rank, args=(theirs, rank, world_size, store, init, function, args))
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        try:
            answers = []
            for rank, pipe in enumerate(pipes):
                if not pipe.poll(seconds):
                    raise RankFailed(f"rank {rank} hangs")
                ok, answer = pipe.recv()
                if not ok:
                    raise RankFailed(f"rank {rank}: {answer}")
                answers.append(answer)
            return answers
        finally:
            for process in processes:
                process.join(5)
                if process.is_alive():
                    process.kill()


def _rank(pipe: Any, rank: int, world_size: int, store: str, init: bool, function: Any, args: Any) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    try:
        without_cuda()
        if init:
            start(rank, world_size, store)
            answer = function(rank, *args)
        else:
            answer = function(rank, store, *args)
        pipe.send((True, answer))
    except BaseException:
        pipe.send((False, traceback.format_exc()))
    finally:
        with suppress(Exception):
            torch.distributed.destroy_process_group()


_world: list[Any] = []


def start(rank: int, world_size: int, store: str) -> None:
    _world[:] = rank, world_size, store, None
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=world_size)


def groups(**sizes: int) -> None:
    """Core's process groups, by the names of ``initialize_model_parallel``; the same again cost nothing."""
    from megatron.core import parallel_state

    rank, world_size, store, before = _world
    if sizes != before:
        if before is not None:  # each group has threads of its own, which only go with the whole world
            parallel_state.destroy_model_parallel()
            torch.distributed.destroy_process_group()
            start(rank, world_size, store + "+")
        parallel_state.initialize_model_parallel(**sizes)
        _world[3] = sizes


def without_cuda() -> None:
    from megatron.core.dist_checkpointing.strategies import filesystem_async

    torch.cuda.synchronize = lambda *args: None
    torch.cuda.current_device = lambda: "cpu"
    results = queue.Queue()
    filesystem_async.get_write_results_queue = lambda *args: results  # else a manager process for each rank


def folder(parent: Path, name: str) -> str:
    (parent / name).mkdir(parents=True, exist_ok=True)
    return str(parent / name)
