"""transformers' own model, forced to float64, as an oracle for the reference (extra `oracle`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from transformers.models.qwen4_exp import modeling_qwen4_exp as hf
from transformers.models.qwen4_exp.configuration_qwen4_exp import Qwen4ExpConfig, Qwen4ExpTextConfig

from support.reference.primitives import Array
from support.reference_cases import CUTS, IMAGE_GRID, VIDEO_GRID, Case, Inputs

_FROM_CONSTANTS = ("layer_multipliers", "ngram_heads_vocab_sizes", "ngram_heads_offsets", "inv_freq")


class _Wide:
    """torch with float32 spelled float64, so that the library's float32 islands keep double precision."""

    float32 = float = torch.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


@contextmanager
def float64_islands() -> Iterator[None]:
    """Within it the library computes everything in float64."""
    plain = torch.Tensor.float
    hf.torch, torch.Tensor.float = _Wide(), torch.Tensor.double
    try:
        yield
    finally:
        hf.torch, torch.Tensor.float = torch, plain


def build(case: Case, weights: Mapping[str, Array], inv_freq: Array | None) -> Any:
    """The library's whole model with `weights` (canonical names), float64; `inv_freq` replaces its float32
    frequencies."""
    raw = case.raw_config
    config = Qwen4ExpConfig(**{k: v for k, v in raw.items() if k not in ("architectures", "model_type")})
    for part in (config, config.text_config, config.vision_config):
        part._attn_implementation = part._experts_implementation = "eager"
    net = hf.Qwen4ExpForConditionalGeneration(config).double().eval()
    state = {}
    for name, value in net.state_dict().items():
        if not name.endswith(_FROM_CONSTANTS):
            state[name] = torch.tensor(_tensor(name, weights)).reshape(value.shape)
    missing, unexpected = net.load_state_dict(state, strict=False)
    assert not unexpected and all(m.endswith(_FROM_CONSTANTS) for m in missing), (missing, unexpected)
    if inv_freq is not None:
        net.model.language_model.rotary_emb.inv_freq = torch.tensor(inv_freq)
        quarter = config.vision_config.hidden_size // config.vision_config.num_heads // 4
        axial = 10000.0 ** (-torch.arange(0, 2 * quarter, 2).double() / (2 * quarter))
        net.model.visual.rotary_pos_emb.inv_freq = axial
    return net


def _tensor(name: str, weights: Mapping[str, Array]) -> Array:
    short = name.removeprefix("model.language_model.").replace("model.visual.", "visual.")
    if short.endswith("experts.gate_up_proj"):
        at = short.removesuffix("gate_up_proj")
        return np.concatenate([weights[f"{at}gate_proj.weight"], weights[f"{at}up_proj.weight"]], 1)
    if short.endswith("experts.down_proj"):
        return weights[short + ".weight"]
    if short.endswith("ngram_embedding.weight"):
        at = short.removesuffix("weight")
        return np.concatenate([weights[k] for k in sorted(k for k in weights if k.startswith(at))])
    return weights[short]


def expected(case: Case, net: Any) -> dict[str, Array]:
    """What the library makes of a case: `logits`, and `features` of a media case."""
    given = case.inputs()
    with torch.no_grad():
        ids = torch.tensor(given.tokens)[None]
        out: dict[str, Array] = {}
        if given.kinds is not None:
            out["features"] = np.concatenate(
                [
                    net.model.visual(
                        torch.tensor(patches), grid_thw=torch.tensor([grid])
                    ).pooler_output.numpy()
                    for patches, grid in ((given.image, IMAGE_GRID), (given.video, VIDEO_GRID))
                ]
            )
            got = net(
                ids, pixel_values=torch.tensor(given.image), pixel_values_videos=torch.tensor(given.video),
                image_grid_thw=torch.tensor([IMAGE_GRID]), video_grid_thw=torch.tensor([VIDEO_GRID]),
                mm_token_type_ids=torch.tensor(given.kinds)[None],
            )  # fmt: skip
        else:
            got = net(ids, position_ids=torch.tensor(given.positions)[:, None])
        out["logits"] = got.logits[0].numpy()
        return out


def expected_in_chunks(given: Inputs, net: Any) -> Array:
    """Logits of a text case, cut at CUTS and carried by the library's cache."""
    cache, out = None, []
    with torch.no_grad():
        for ids in np.split(given.tokens, CUTS):
            step = net(torch.tensor(ids)[None], past_key_values=cache, use_cache=True)
            cache = step.past_key_values
            out.append(step.logits[0].numpy())
    return np.concatenate(out)


def expected_draft(case: Case, net: Any, weights: Mapping[str, Array], streams: Array) -> Array:
    """Draft logits for given main streams (T, W): the entry fusion is written here, the body is the library's
    layer."""
    given, raw = case.inputs(), case.raw_config["text_config"]
    one = {"num_hidden_layers": 1, "layer_types": ["full_attention"], "ple_layer_ids": []}
    config = Qwen4ExpTextConfig(**{**raw, **one})
    config._attn_implementation = config._experts_implementation = "eager"
    layer = _loaded(hf.Qwen4ExpTextDecoderLayer(config, 0), weights, "mtp.layers.0.")
    mixer = _loaded(
        hf.Qwen4ExpTextGatedResidual(config, use_combine=False), weights, "mtp.hyper_connection_mixer."
    )
    d, s = config.hidden_size, config.hc_count
    norm_e = _loaded(hf.Qwen4ExpTextRMSNorm(d), weights, "mtp.pre_fc_norm_embedding.")
    norm_h = _loaded(hf.Qwen4ExpTextRMSNorm(d * s), weights, "mtp.pre_fc_norm_hidden.")
    fc_e = _loaded(torch.nn.Linear(d, d, bias=False), weights, "mtp.fc_embedding.")
    fc_h = _loaded(torch.nn.Linear(d, d, bias=False), weights, "mtp.fc_hidden.")
    with torch.no_grad():
        embedding = net.model.language_model.embed_tokens(torch.tensor(given.tokens[1:]))[None]
        main = torch.tensor(streams[:-1])[None]
        x = fc_e(norm_e(embedding)).unsqueeze(-2) + fc_h(norm_h(main).unflatten(-1, (s, d)))
        n = x.shape[1]
        position = net.model.language_model.rotary_emb(x, torch.tensor(given.positions[:, :-1])[:, None])
        mask = torch.full((n, n), torch.finfo(torch.float64).min, dtype=torch.float64).triu(1)[None, None]
        y = layer(x.flatten(-2), position_embeddings=position, attention_mask=mask)
        return np.asarray(net.lm_head(mixer(y))[0].numpy())


def _loaded(module: Any, weights: Mapping[str, Array], prefix: str) -> Any:
    module = module.double().eval()
    state = {
        name: torch.tensor(_tensor(prefix + name, weights)).reshape(v.shape)
        for name, v in module.state_dict().items()
    }
    module.load_state_dict(state)
    return module


def rope_index(
    kinds: Sequence[int], images: Sequence[tuple[int, int, int]], videos: Sequence[tuple[int, int, int]]
) -> tuple[Array, int]:
    """(n, 3) rotary positions of a prompt and the delta behind it, by kinds of tokens and grids."""
    model = hf.Qwen4ExpModel.__new__(hf.Qwen4ExpModel)
    torch.nn.Module.__init__(model)
    model.config = Qwen4ExpConfig()
    found, delta = model.get_rope_index(
        torch.zeros(1, len(kinds), dtype=torch.long),
        torch.tensor([list(kinds)]),
        image_grid_thw=torch.tensor(images) if images else None,
        video_grid_thw=torch.tensor(videos) if videos else None,
    )
    return found[:, 0].numpy().T, int(delta)
