"""The second judge: what NeMo-RL's own functions make of a recipe, on a real Bridge provider.

Reading a recipe ourselves, we can be wrong about NeMo-RL in the same way before and after a rewrite. Here NeMo-RL
reads it: its ``load_config``, its command-line overrides, its typed config, its teachers and generation models, its
merge of ``model_overrides``, then Bridge's ``finalize()``; we only look at the sizes. No GPU, no weights.

:mod:`.client` asks, :mod:`.process` answers in a process of its own (NeMo-RL, Bridge and torch take many seconds to
import, and patches and resolvers stay in there), :mod:`.models` is what it runs. :mod:`.protocol` is what the two
say to each other.
"""

from gtp_migrate.judge.client import Judge
from gtp_migrate.judge.protocol import Answer, Failure, Model, Request, Sizes
from gtp_migrate.problems import JudgeError

__all__ = ["Answer", "Failure", "Judge", "JudgeError", "Model", "Request", "Sizes"]
