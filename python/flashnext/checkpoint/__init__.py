"""Checkpoints: safetensors files in the Hugging Face and MLX layouts, quantization and conversion."""

from flashnext.checkpoint.affine import Affine
from flashnext.checkpoint.config import ModelConfig, YarnConfig
from flashnext.checkpoint.config_reader import parse_config
from flashnext.checkpoint.layout import Checkpoint, open_checkpoint
from flashnext.checkpoint.rope import rope_tables
from flashnext.checkpoint.views import TensorView

__all__ = [
    "Affine",
    "Checkpoint",
    "ModelConfig",
    "TensorView",
    "YarnConfig",
    "open_checkpoint",
    "parse_config",
    "rope_tables",
]
