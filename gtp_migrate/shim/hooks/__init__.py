"""Every hook of the shim, in one table: where, what is done there and why, and which versions have the place.

A target that is not there is skipped and named at DEBUG. Read in Bridge 0.6.2 with Core 0.19.2, in Bridge main of
September 2026, and in NeMo-RL at 7ea279ab.
"""

from __future__ import annotations

from gtp_migrate.shim.hooks import configs, nemo_rl
from gtp_migrate.shim.install import Hook, Installation
from gtp_migrate.shim.weights import load

_BRIDGE = "megatron.bridge.training."
_CONTAINER = "megatron.training.config.container:ConfigContainerBase."
_CONFIGS = [
    f"megatron.bridge.models.transformer_config:{name}TransformerConfig." for name in ("", "MLA", "Heterogeneous")
]
_CORE_CONFIG = "megatron.core.model_parallel_config:ModelParallelConfig."
_CKPT = "megatron.core.dist_checkpointing"
_RL = "nemo_rl.models.megatron.setup:"

#: target; hook; why; since and until which version (Bridge's, unless another is named; none: the newest has it)
_TABLE = [
    # A recorded count becomes one that knows where it belongs.
    (_BRIDGE + "utils.checkpoint_utils:apply_run_config_backward_compat", configs.before_stripping,
     "drops, on rank 0, what a class does not take: a GTP size without a count would be lost", "0.6.2", ""),
    (_BRIDGE + "utils.checkpoint_utils:read_run_config", configs.read_run_config,
     "load_model_config, load_megatron_model, AutoBridge and NeMo-RL read run_config.yaml with it", "0.6.2", ""),
    (_BRIDGE + "checkpointing:read_run_config", configs.read_run_config,
     "the same function, by the name that load_model_config imports", "0.6.2", ""),
    (_CONTAINER + "from_yaml", configs.from_yaml, "reads run_config.yaml by itself", "0.6.2", ""),
    (_BRIDGE + "mlm_compat.arguments:_transformer_config_from_args", configs.from_megatron_lm,
     "the config of a Megatron-LM checkpoint comes from its saved arguments", "0.6.2", ""),
    (_BRIDGE + "utils.omegaconf_utils:_dataclass_to_omegaconf_dict", configs.to_omegaconf,
     "command-line overrides go through OmegaConf, which takes no subclass of int", "0.6.2", ""),
    # It is decided what becomes of it.
    *[(config + "finalize", configs.finalize,
       "this run's sizes are set now, and new Bridge derives the GTP sizes here", "0.6.2", "") for config in _CONFIGS],
    *[(config + "__post_init__", configs.constructed,
       "a provider's own finalize() looks at the counts before it calls its base's", "0.6.2", "")
      for config in _CONFIGS],
    (_CORE_CONFIG + "__post_init__", configs.finalize,
     "Core's own classes, as of Megatron-LM checkpoints, derive the GTP sizes here", "0.6.2", ""),
    (_BRIDGE + "mlm_compat.model:_get_model", configs.decide_first,
     "nobody finalizes the config of a Megatron-LM checkpoint again once this run's TP is set", "0.6.2", ""),
    (_CONTAINER + "to_dict", configs.decide_first, "writes run_config.yaml, finalized or not", "0.6.2", ""),
    # Weights.
    (_CKPT + ".serialization:load", load, "every read of a torch_dist checkpoint, adapters included", "0.6.2", ""),
    (_CKPT + ":load", load, "the same function, by the name that Bridge and NeMo-RL call", "0.6.2", ""),
    (_RL + "build_inference_model", nemo_rl.build_inference_model,
     "the colocated generation model is a copy of the training provider at another TP", "NeMo-RL 7ea279ab",
     "NeMo-RL pull request 3857, where it stands back"),
]  # fmt: skip

HOOKS = tuple(Hook(*row) for row in _TABLE)
INSTALLATION = Installation(HOOKS)
