"""Checkpoint folders written by the real Bridge, without weights."""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import yaml
from megatron.bridge.models import transformer_config
from megatron.bridge.models.gpt_provider import GPTModelProvider
from megatron.bridge.training.config import ConfigContainer
from megatron.training.config.container import ConfigContainerBase
from megatron.training.models.gpt import GPTModelConfig

from bridge_machine import new_bridge, released

MODEL = {"num_layers": 2, "hidden_size": 128, "num_attention_heads": 16, "ffn_hidden_size": 256}
MOE = {"num_moe_experts": 8, "moe_ffn_hidden_size": 256, "add_bias_linear": False}

_BLOCK = {"attention": {"no_op": False, "n_heads_in_group": 1}, "mlp": {"no_op": False, "ffn_mult": 2.0}}
BLOCKS = json.dumps({"block_configs": [_BLOCK, _BLOCK]})


def builder(transformer: Any) -> GPTModelConfig:
    return GPTModelConfig(transformer=transformer, vocab_size=256)


#: The classes of the two Bridges that the shim meets.
RELEASED = SimpleNamespace(
    name="released",
    provider=GPTModelProvider,
    own_finalize=released.OwnFinalize,
    config=transformer_config.TransformerConfig,
    builder=lambda **kwargs: builder(transformer_config.TransformerConfig(**kwargs)),
    mla=transformer_config.MLATransformerConfig,
    heterogeneous=transformer_config.HeterogeneousTransformerConfig,
)
NEW = SimpleNamespace(
    name="new",
    provider=new_bridge.NewGPTModelProvider,
    own_finalize=new_bridge.NewOwnFinalize,
    config=new_bridge.NewTransformerConfig,
    builder=lambda **kwargs: builder(new_bridge.NewTransformerConfig(**kwargs)),
    mla=new_bridge.NewMLATransformerConfig,
    heterogeneous=new_bridge.NewHeterogeneousTransformerConfig,
)


def container(model: Any) -> ConfigContainer:
    """A run's config with nothing in it but the model."""
    return ConfigContainer(
        model=model,
        train=None,
        optimizer=None,
        scheduler=None,
        dataset=None,
        logger=None,
        tokenizer=None,
        checkpoint=None,
        ddp=None,
        dist=None,
    )


@dataclass
class NoModel(ConfigContainerBase):
    """Another config that is read and written as a run's is."""

    number: int = 1


def save(model: Any, folder: Path, **raw: Any) -> str:
    """Finalize ``model``, save it as Bridge does, and put ``raw`` into its section of the file afterwards.

    ``raw`` writes what the model's class could not have: a GTP size of an older Bridge, or nonsense.
    """
    model.finalize()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "run_config.yaml"
    container(model).to_yaml(str(path))
    if raw or isinstance(model, GPTModelConfig):
        content = yaml.safe_load(path.read_text())
        section = content["model"]
        if "transformer" in section:
            section = section["transformer"]
            # ModelConfig.from_dict takes every nested _target_ for a config class: it cannot read the enums
            # and dtypes it wrote.
            for name in [name for name, value in section.items() if isinstance(value, dict)]:
                del section[name]
        for name, value in raw.items():
            section[name] = value
            if value is ...:
                del section[name]
        path.write_text(yaml.safe_dump(content))
    return str(folder)


def save_megatron_lm(folder: Path, **args: Any) -> str:
    """A checkpoint as Megatron-LM leaves it: the command line in its common state dict."""
    folder.mkdir(parents=True, exist_ok=True)
    defaults = {
        **MODEL,
        "multi_latent_attention": False,
        "heterogeneous_layers_config_path": None,
        "no_persist_layer_norm": False,
        "params_dtype": torch.float32,
        "overlap_p2p_comm": False,
        "num_experts": None,
        "rotary_interleaved": False,
        "decoder_first_pipeline_num_layers": None,
        "decoder_last_pipeline_num_layers": None,
        "fp8_param_gather": False,
        "swiglu": False,
        "bias_gelu_fusion": False,
        "squared_relu": False,
        "init_method_xavier_uniform": False,
        "group_query_attention": False,
        "config_logger_dir": "",
        "cp_comm_type": ["p2p"],
        "is_hybrid_model": False,
        "make_vocab_size_divisible_by": 128,
        "expert_tensor_parallel_size": None,
        "expert_model_parallel_size": 1,
    }
    torch.save({"args": argparse.Namespace(**{**defaults, **args})}, os.path.join(folder, "common.pt"))
    (folder / "metadata.json").write_text(
        '{"sharded_backend": "torch_dist", "sharded_backend_version": 1, '
        '"common_backend": "torch", "common_backend_version": 1}'
    )
    return str(folder)
