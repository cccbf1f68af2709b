"""Rotary frequencies of a model at a given context, plain or stretched by static YaRN."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from flashnext.checkpoint.config import YARN_FACTOR, ModelConfig, YarnConfig
from flashnext.errors import InvalidArgument

Float32 = npt.NDArray[np.float32]


def rope_tables(config: ModelConfig, context: int) -> tuple[Float32, float]:
    """Compute the rotary frequencies that serve sequences of up to `context` tokens.

    Up to the trained window the frequencies are the plain ones, unless config.json itself asks for YaRN.
    Beyond it static YaRN with the family's factor of 4 is used for every position, whatever the context, so
    that a sequence's numbers do not depend on how much longer it might have become.

    Args:
        config: The model's sizes.
        context: Largest position count, prompt plus reply, in tokens; from 1 to `config.largest_context`.

    Returns:
        The frequencies, (rotary_dim / 2,) float32, in radians a position, and the factor that multiplies cos
        and sin.

    Raises:
        InvalidArgument: `context` is not in its range.

    Source: Peng et al. 2023 (YaRN); transformers 5.23, `_compute_yarn_parameters`, whose float32 steps these
    repeat. Powers are rounded correctly here; a vectorized power elsewhere can be one unit in the last place
    off.
    """
    check_context(config, context)
    powers = _powers(config.rope_theta, config.rotary_dim)
    yarn = config.yarn
    if yarn is None and context > config.max_position:
        yarn = YarnConfig(factor=float(YARN_FACTOR), original_max_position=config.max_position)
    if yarn is None:
        return np.float32(1) / powers, 1.0
    return _yarn_frequencies(powers, config, yarn), attention_factor(yarn)


def check_context(config: ModelConfig, context: int, name: str = "context") -> None:
    """Raise `InvalidArgument` for a context, in tokens, that the model does not reach; it calls it `name`."""
    if not 1 <= context <= config.largest_context:
        raise InvalidArgument(
            f"{name} is {context}, but this model reaches from 1 to {config.largest_context} tokens "
            f"({_reach(config)}); ask for a smaller context"
        )


def _reach(config: ModelConfig) -> str:
    if config.yarn is None:
        return f"its trained window {config.max_position} times the YaRN factor {YARN_FACTOR}"
    return (
        f"its trained window {config.yarn.original_max_position} times the YaRN factor {config.yarn.factor:g}"
    )


def _powers(theta: float, rotary_dim: int) -> Float32:
    """theta^(2j / rotary_dim) for each frequency j, rounded once from float64."""
    exponents = np.arange(0, rotary_dim, 2, dtype=np.float32) / np.float32(rotary_dim)
    powers = np.float64(np.float32(theta)) ** exponents.astype(np.float64)
    return powers.astype(np.float32)


def attention_factor(yarn: YarnConfig) -> float:
    """Return what YaRN multiplies cos and sin by."""
    if yarn.attention_factor is not None:
        return yarn.attention_factor

    def mscale(weight: float) -> float:
        return 1.0 if yarn.factor <= 1 else 0.1 * weight * math.log(yarn.factor) + 1.0

    if yarn.mscale and yarn.mscale_all_dim:
        return mscale(yarn.mscale) / mscale(yarn.mscale_all_dim)
    return mscale(1)


def _yarn_frequencies(powers: Float32, config: ModelConfig, yarn: YarnConfig) -> Float32:
    def border(rotations: float) -> float:
        """Find the dimension whose frequency turns `rotations` times over the trained window."""
        turns = yarn.original_max_position / (rotations * 2 * math.pi)
        return config.rotary_dim * math.log(turns) / (2 * math.log(config.rope_theta))

    low, high = border(yarn.beta_fast), border(yarn.beta_slow)
    if yarn.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, config.rotary_dim - 1)
    if low == high:
        high += 0.001
    ramp = (np.arange(config.rotary_dim // 2, dtype=np.float32) - np.float32(low)) / np.float32(high - low)
    kept = np.float32(1) - np.clip(ramp, np.float32(0), np.float32(1))
    plain = np.float32(1) / powers
    stretched = np.float32(1) / (np.float32(yarn.factor) * powers)
    out: Float32 = stretched * (np.float32(1) - kept) + plain * kept
    return out
