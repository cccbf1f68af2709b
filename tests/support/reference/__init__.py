"""The model in plain numpy, written from docs/model.md: slow, explicit, any float dtype.

Nothing here is tuned: every step is the definition of the operation. `tests/model` compares it with
transformers; `tests/data/reference_transformers.json` holds samples of that for an environment without torch.

* `text` the text model over a state that any chunking leaves the same; `decoder` one layer of it
* `mtp` the draft head
* `vision` the tower, `media` resizing, patches, frames and rotary positions
* `rope` frequencies and rotation, `ngram` hashed rows, `quant` the affine format, `margins` gaps at decisions
"""
