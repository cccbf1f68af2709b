"""The model in plain numpy: slow, explicit, any float dtype. Where the formulas stand that kernels cite.

Nothing here is tuned: every step is the definition of the operation. Source: transformers 5.23, `qwen4_exp`;
`tests/model` compares with it, and `tests/data/reference_transformers.json` holds samples of that for an
environment without torch. docs/model.md says what the engine rounds and in which order it adds.

* `text` the text model over a state that any chunking leaves the same; `decoder` one layer of it
* `mtp` the draft head
* `vision` the tower, `media` resizing, patches, frames and rotary positions
* `rope` frequencies and rotation, `ngram` hashed rows, `quant` the affine format, `margins` gaps at decisions
"""
