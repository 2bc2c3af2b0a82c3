"""Parameters without a checkpoint: abstract ones for tracing, random ones for trying things out."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from .config import Config
from .params import Params
from .published import Published, published_parameters


def abstract_params(config: Config, dtype=jnp.bfloat16) -> Params:
    """The tree of parameters as `jax.ShapeDtypeStruct`, for tracing and ahead-of-time compilation.

    Args:
        config: the model.
        dtype: type of the parameters; A_log and the gated norm's weight are float32 in any case.

    Returns:
        The parameters' shapes and types.  Costs no memory at any size.

    Example:
        >>> params = abstract_params(Config.named("qwen3.5-397b-a17b"))
        >>> sum(leaf.size for leaf in jax.tree.leaves(params))
        396346350336
    """
    return jax.tree.map(
        lambda place: jax.ShapeDtypeStruct(place.shape, jnp.float32 if place.float32 else dtype),
        published_parameters(config),
    )


def random_params(config: Config, key: PRNGKeyArray, dtype=jnp.float32) -> Params:
    """Random parameters of sensible scale: activations keep size about 1 and logits have a spread of about 1.

    Args:
        config: the model.
        key: a `jax.random` key.
        dtype: type of the parameters; A_log and the gated norm's weight are float32 in any case.

    Returns:
        The parameters.

    Example:
        >>> import dataclasses
        >>> config = dataclasses.replace(Config.named("0.8b"), vocab_size=64, num_hidden_layers=4, layer_types=())
        >>> random_params(config, jax.random.key(0)).embed.shape
        (64, 1024)
    """
    places, tree = jax.tree_util.tree_flatten_with_path(published_parameters(config))
    keys = jax.random.split(key, len(places))
    leaves = [
        _random(path[-1].name, place, config, key).astype(jnp.float32 if place.float32 else dtype)
        for (path, place), key in zip(places, keys)
    ]
    return jax.tree.unflatten(tree, leaves)


def _random(name: str, place: Published, config: Config, key: PRNGKeyArray) -> Array:
    """One parameter in float32, by the name of its field."""
    if name == "A_log":  # exp(A_log), the rate of decay, uniform in 1..16: Mamba-2's initial values
        return jnp.log(jax.random.uniform(key, place.shape, minval=1.0, maxval=16.0))
    if name == "dt_bias":  # softplus(dt_bias), a token's time step, log-uniform in 0.001..0.1
        step = jnp.exp(jax.random.uniform(key, place.shape, minval=math.log(1e-3), maxval=math.log(0.1)))
        return jnp.log(jnp.expm1(step))
    noise = jax.random.normal(key, place.shape)
    if name.endswith("norm"):  # zero-centred, but for the gated norm's weight, which is the one kept in float32
        return 0.1 * noise + (1.0 if place.float32 else 0.0)
    if name == "embed":  # a tied embedding is the head as well
        return noise * (config.hidden_size**-0.5 if config.tie_word_embeddings else 1.0)
    return noise * place.shape[-2] ** -0.5  # weights are [..., in, out], the convolution's [K, C]
