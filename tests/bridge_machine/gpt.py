"""A small real GPT that Bridge builds, saves and loads on CPU: with Core's own layers, not transformer_engine's."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from megatron.bridge.training import checkpointing
from megatron.bridge.training.model_load_save import save_megatron_model
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer import transformer_block
from megatron.core.transformer.torch_norm import WrappedTorchNorm

from bridge_machine import ranks

SIZES = {
    "num_layers": 2,
    "hidden_size": 32,
    "ffn_hidden_size": 48,
    "num_attention_heads": 8,
    "vocab_size": 128,
    "make_vocab_size_divisible_by": 16,
    "seq_length": 16,
}


FUSIONS = (
    "gradient_accumulation_fusion",
    "bias_activation_fusion",
    "bias_dropout_fusion",
    "masked_softmax_fusion",
    "persist_layer_norm",
    "apply_rope_fusion",
)


def local_spec(config: Any) -> Any:
    return get_gpt_layer_local_spec(normalization=config.normalization)


def provider(cls: type, **kwargs: Any) -> Any:
    return cls(
        **SIZES,
        transformer_layer_spec=local_spec,
        gated_linear_unit=True,
        activation_func=F.silu,
        add_bias_linear=False,
        normalization="RMSNorm",
        use_cpu_initialization=True,
        share_embeddings_and_output_weights=False,
        **dict.fromkeys(FUSIONS, False),
        **kwargs,
    )


def on_cpu() -> None:
    """What the layers and the saving need of a GPU, without one."""
    transformer_block.get_cpu_offload_context = None
    transformer_block.LayerNormImpl = WrappedTorchNorm
    checkpointing.get_rng_state = lambda *args, **kwargs: None


def build(config: Any) -> Any:
    """The model of a finalized provider, on ranks of its TP."""
    ranks.groups(tensor_model_parallel_size=config.tensor_model_parallel_size)
    return config.provide_distributed_model(wrap_with_ddp=False, use_cpu_initialization=True)


def save(model: Any, folder: str) -> str:
    """As Bridge saves it; the checkpoint's own folder."""
    save_megatron_model(model, folder)
    return f"{folder}/iter_0000000"


def weights(model: Any) -> dict[str, Any]:
    """As arrays: a tensor goes from process to process by shared memory, which ends with its process."""
    return {name: weight.detach().numpy().copy() for name, weight in model[0].named_parameters()}
