"""Training steps of the demo: the loss through `jaxsplice.optimize`, its gradient, the weights' update."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxsplice.models import qwen3_5
from jaxsplice.passes.errors import JaxspliceError
from jaxsplice.runtime.optimize import optimize

BALANCE_WEIGHT = 0.01
MAX_GRADIENT_NORM, WEIGHT_DECAY, WARMUP_STEPS = 1.0, 0.1, 100
# How far the optimised and the reference model may be apart in float32, relative to the value.
LOSS_TOLERANCE, GRADIENT_TOLERANCE = 1e-4, 1e-2


def next_token_loss(
    params: qwen3_5.Params, config: qwen3_5.Config, windows: Int[Array, "B T+1"]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """What training minimises, and the part of it that says how well the model predicts.

    Args:
        params: the model's parameters.
        config: the model.
        windows: token ids; each predicts the next.

    Returns:
        The cross entropy plus a small term for evenly used experts, and the cross entropy alone, in nats per token.
        The term is the Switch Transformer's (Fedus, Zoph and Shazeer 2021): E · sum(share of tokens · mean
        probability), 1 when even.
    """
    logits, _, taps = qwen3_5.forward(params, config, windows[:, :-1], taps=True)
    log_probs = jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1)
    entropy = -jnp.mean(jnp.take_along_axis(log_probs, windows[:, 1:, None], axis=-1))
    terms = []
    for i in range(config.num_hidden_layers):
        probs = jax.nn.softmax(taps[f"layer{i}.mlp.router_logits"].astype(jnp.float32), axis=-1)
        chosen = jax.nn.one_hot(taps[f"layer{i}.mlp.topk_indices"], config.num_experts)
        terms.append(config.num_experts * jnp.sum(jnp.mean(chosen, axis=(0, 1)) * jnp.mean(probs, axis=0)))
    return entropy + BALANCE_WEIGHT * jnp.mean(jnp.stack(terms)), entropy


@dataclass
class Trainer:
    """One model in training.

    Args:
        config: the model.
        learning_rate: at its highest, after the warm-up; a cosine takes it down to a tenth.
        steps: of the whole training.
    """

    config: qwen3_5.Config
    learning_rate: float
    steps: int

    def __post_init__(self):
        import optax

        self.loss = optimize(next_token_loss)
        warmup = min(WARMUP_STEPS, self.steps // 10)
        self.schedule = optax.warmup_cosine_decay_schedule(
            0.0 if warmup else self.learning_rate, self.learning_rate, warmup, self.steps, 0.1 * self.learning_rate
        )
        self._update = optax.chain(
            optax.clip_by_global_norm(MAX_GRADIENT_NORM),
            optax.adamw(self.schedule, b2=0.95, weight_decay=WEIGHT_DECAY, mask=is_matrix),
        )
        self._step = jax.jit(self._one_step, donate_argnums=(0, 1))
        self._entropy = jax.jit(lambda params, windows: self.loss(params, self.config, windows)[1])

    def start(self, params: Any) -> Any:
        """The state of the update."""
        return self._update.init(params)

    def step(self, params, state, batches: Int[np.ndarray, "M B T+1"]):
        """One update from the mean gradient of M batches; returns parameters, state, cross entropy, gradient norm."""
        return self._step(params, state, batches)

    def held_out_loss(self, params, batches: Int[np.ndarray, "M B T+1"]) -> float:
        """Mean cross entropy over batches, nats per token; not a number when there are none."""
        return float(np.mean([self._entropy(params, windows) for windows in batches])) if len(batches) else float("nan")

    def _one_step(self, params, state, batches):
        import optax

        def add(total, windows):
            (_, entropy), gradient = jax.value_and_grad(self.loss, has_aux=True)(params, self.config, windows)
            return jax.tree.map(jnp.add, total, gradient), entropy

        total, entropies = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), batches)
        gradient = jax.tree.map(lambda x: x / len(batches), total)
        change, state = self._update.update(gradient, state, params)
        return optax.apply_updates(params, change), state, jnp.mean(entropies), tree_norm(gradient)


def is_matrix(params: qwen3_5.Params) -> qwen3_5.Params:
    """Which parameters are decayed: the matrices."""
    return jax.tree.map(lambda x: x.ndim >= 2, params)


def tree_norm(tree: Any) -> Float[Array, ""]:
    """The Euclidean norm of all numbers in a tree."""
    return jnp.sqrt(sum(jnp.sum(jnp.square(x)) for x in jax.tree.leaves(tree)))


@dataclass(frozen=True)
class Agreement:
    """How far the optimised loss is from the reference on one batch.

    Attributes:
        loss: of the optimised model.
        loss_error: relative difference of the losses.
        gradient_error: norm of the difference of the gradients over the reference gradient's norm.
        rewrites: sites by rule in the optimised loss.
    """

    loss: float
    loss_error: float
    gradient_error: float
    rewrites: dict[str, int]


def check_agreement(
    optimised: Callable, reference: Callable, params: Any, config: Any, windows: Int[np.ndarray, "B T+1"]
) -> Agreement:
    """Compare loss and gradient of the optimised and of the plain model.

    Args:
        optimised: `optimize(reference)`.
        reference: a loss in the form of `next_token_loss`.
        params: where to compare.
        config: the model.
        windows: the batch.

    Returns:
        The differences.

    Raises:
        JaxspliceError: nothing was rewritten, a value is not finite, or they are further apart than rounding explains.
    """
    rewrites = optimised.lower(params, config, windows).report.counts
    if not rewrites:
        raise JaxspliceError("the training loss was not rewritten anywhere: no rule matches this model")
    (loss, gradient), (true_loss, true_gradient) = (
        jax.jit(jax.value_and_grad(lambda p, w, f=f: f(p, config, w)[0]))(params, windows)
        for f in (optimised, reference)
    )
    apart = float(tree_norm(jax.tree.map(jnp.subtract, gradient, true_gradient)) / tree_norm(true_gradient))
    found = Agreement(float(loss), abs(float(loss - true_loss)) / abs(float(true_loss)), apart, rewrites)
    # written so that not-a-number fails
    if not (found.loss_error <= LOSS_TOLERANCE and found.gradient_error <= GRADIENT_TOLERANCE):
        raise JaxspliceError(
            f"optimised and reference model disagree on the first batch: loss by {found.loss_error:.1e} (at most "
            f"{LOSS_TOLERANCE:.0e}), gradient by {found.gradient_error:.1e} (at most {GRADIENT_TOLERANCE:.0e}); "
            "jaxsplice.explain shows the rewrites"
        )
    return found
