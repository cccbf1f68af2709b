"""The sizes and options of a model, as `config_reader` takes them from config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PAGE_TOKENS = 64  # tokens a cache page; an index block must not cross one

YARN_FACTOR = (
    4  # the published factor of the family, used for a context beyond the window where the config names none
)


@dataclass(frozen=True)
class YarnConfig:
    """Static YaRN as config.json asks for it.

    Attributes:
        factor: Largest context over the trained window; >= 1.
        original_max_position: The trained window, in tokens.
        beta_fast: Rotations over the trained window above which a frequency is kept.
        beta_slow: Rotations over the trained window below which a frequency is divided by `factor`.
        attention_factor: What cos and sin are multiplied by, or None: derived from `factor` and the two
            mscales.
        mscale: Numerator weight of the derived attention factor, or None.
        mscale_all_dim: Denominator weight of the derived attention factor, or None.
        truncate: Whether the two borders are rounded outwards to whole dimensions.
    """

    factor: float
    original_max_position: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True


@dataclass(frozen=True)
class ModelConfig:
    """The sizes and options of a model; every field has been checked, alone and against the others.

    Attributes:
        attention_layers: For each layer whether it is sparse attention (True) or DeltaNet (False).
        rotary_dim: Leading dimensions of a head that rotate; even.
        mrope_section: Frequencies of the time, height and width axes; they sum to rotary_dim / 2.
        rope_type: "default" or "yarn"; `yarn` is set exactly with "yarn".
        max_position: max_position_embeddings: the trained window in tokens, where no YaRN is configured.
        index_budget: Tokens that a query may select from complete blocks of `index_ratio` tokens.
        output_gate: Activation of the DeltaNet output gate, "sigmoid" or "silu".
        ple_layers: 0-based layers with an n-gram embedding (PLE); the file counts from 1.
        ngram_multipliers: For each PLE layer, `ngram_size` factors; `ngram_sizes` and `ngram_offsets` for
            each PLE layer one entry a head; `ngram_rows` for each PLE layer the rows of its table, padding
            included.
        ngram_shards: Tensors that each table is cut into, of equal row counts.
        segment_token: The token that ends an n-gram segment (the text model's eos).
        text_eos: All eos ids of the text model; `segment_token` is the first.
        n_mtp_layers: 1 with a draft head, else 0.
        vision: The checked vision_config, or None for a text model.
    """

    vocab_size: int
    hidden_size: int
    n_layers: int
    attention_layers: tuple[bool, ...]
    n_heads: int
    n_kv_heads: int
    head_dim: int
    rotary_dim: int
    mrope_section: tuple[int, int, int]
    rope_theta: float
    rope_type: str
    yarn: YarnConfig | None
    max_position: int
    index_n_heads: int
    index_head_dim: int
    index_budget: int
    index_ratio: int
    linear_k_heads: int
    linear_v_heads: int
    linear_k_dim: int
    linear_v_dim: int
    linear_conv: int
    output_gate: str
    n_experts: int
    top_k: int
    moe_width: int
    shared_width: int
    hc_count: int
    hc_rank: int
    ple_layers: tuple[int, ...]
    ple_dim: int
    ple_conv: int
    ngram_size: int
    heads_per_ngram: int
    ngram_multipliers: tuple[tuple[int, ...], ...]
    ngram_sizes: tuple[tuple[int, ...], ...]
    ngram_offsets: tuple[tuple[int, ...], ...]
    ngram_rows: tuple[int, ...]
    ngram_shards: int
    segment_token: int
    text_eos: tuple[int, ...]
    rms_eps: float
    n_mtp_layers: int
    image_token: int | None
    video_token: int | None
    vision_start_token: int | None
    vision_end_token: int | None
    vision: Mapping[str, int] | None

    @property
    def default_context(self) -> int:
        """The context that the config asks for, in tokens: the trained window, stretched by its YaRN."""
        if self.yarn is None:
            return self.max_position
        if self.max_position > self.yarn.original_max_position:
            return min(self.max_position, self.largest_context)
        return self.largest_context

    @property
    def largest_context(self) -> int:
        """The largest context that may be asked for, in tokens: the trained window times the YaRN factor."""
        if self.yarn is None:
            return self.max_position * YARN_FACTOR
        return int(self.yarn.original_max_position * self.yarn.factor)
