"""The vision tower against its reference, and the law that features hang on their picture alone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flashnext import _core as core
from flashnext.engine.load import load_model
from flashnext.errors import DeviceError, InvalidArgument
from support.engine import DEVICES, METAL_HOST, Engine, open_device
from support.random_checkpoint import write_random
from support.towers import (
    GRIDS,
    VISIONS,
    Float32,
    Grid,
    expected,
    features,
    open_tower,
    patches_of,
    reference,
    stretches,
    write_tower,
)

BUNDLED = Path(__file__).parents[2] / "python" / "flashnext" / "data" / "tiny-6bit"
WIDTH = 96  # values of a patch


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: write_tower(tmp_path_factory.mktemp("tower") / "hf", name) for name in VISIONS}


@pytest.fixture(scope="module")
def folder(folders: dict[str, Path]) -> Path:
    return folders["odd sizes"]


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[Grid, Float32]:
    """Features of each of GRIDS in a pass of its own."""
    tower = open_tower(folder)
    return {grid: features(tower, [grid], [patches_of(grid, WIDTH)])[0] for grid in GRIDS}


def same(found: Float32, wanted: Float32) -> bool:
    return found.shape == wanted.shape and found.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("vision", VISIONS)
def test_features_are_within_the_bound_of_the_reference(
    folders: dict[str, Path], vision: str, device: str
) -> None:
    grids = GRIDS[:5] if device == METAL_HOST else GRIDS
    tower = open_tower(folders[vision], open_device(device, checked=False))
    found = features(tower, grids, [patches_of(grid, WIDTH) for grid in grids])
    for grid, ours in zip(grids, found, strict=True):
        wanted, bound = expected(folders[vision], grid)
        assert np.abs(ours - wanted).max() <= bound, grid


def test_the_bound_sees_a_tower_that_is_wrong(folder: Path) -> None:
    grid = (1, 14, 22)
    patches = patches_of(grid, WIDTH)
    exact, bound = expected(folder, grid)

    def off(name: str, change: float) -> float:
        wrong = reference(folder)
        wrong.w[name] = wrong.w[name] * change
        return float(np.abs(wrong.forward(patches, grid) - exact).max())

    assert off("blocks.1.norm2.bias", 1.01) > bound
    assert off("pos_embed.weight", 1.001) > bound
    assert off("merger.linear_fc1.bias", 1.001) > bound
    transposed = reference(folder)
    side = transposed.side
    table = transposed.w["pos_embed.weight"].reshape(side, side, -1)
    transposed.w["pos_embed.weight"] = table.swapaxes(0, 1).reshape(side * side, -1)
    assert np.abs(transposed.forward(patches, grid) - exact).max() > 100 * bound


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_text_models_dtype_does_not_touch_the_tower(
    folder: Path, alone: dict[Grid, Float32], dtype: str
) -> None:
    grid = (1, 14, 22)
    tower = open_tower(folder, dtype=dtype)
    assert same(features(tower, [grid], [patches_of(grid, WIDTH)])[0], alone[grid])


@pytest.mark.parametrize("seed", range(4))
def test_features_have_the_same_bits_in_any_company_order_and_stretches(
    folder: Path, alone: dict[Grid, Float32], seed: int
) -> None:
    rng = random.Random(seed)
    threads, room = rng.choice([1, 2, 3, 5]), rng.choice([1380, 1400, 2048, 8192])
    device = core.open_device("cpu", threads, "", seed)  # tasks in a random order, but for seed 0
    tower = open_tower(folder, device, room)
    for _ in range(2):
        grids = rng.choices(GRIDS, k=6)
        media = [patches_of(grid, WIDTH) for grid in grids]
        pieces = stretches(media, np.random.default_rng(seed))
        out = tower.features(grids, pieces)
        at = 0
        for i, grid in enumerate(grids):
            wanted = alone[grid]
            found = out[at : at + len(wanted)]
            at += len(wanted)
            assert same(found, wanted), f"seed {seed}, {threads} workers, room {room}: {grids}, number {i}"
        assert at == len(out)


def test_a_features_bits_change_with_its_own_picture_alone(folder: Path, alone: dict[Grid, Float32]) -> None:
    grids: list[Grid] = [(1, 14, 22), (1, 2, 64), (3, 4, 6)]
    media = [patches_of(grid, WIDTH) for grid in grids]
    media[1] = media[1].copy()
    media[1][77, 5] = np.nextafter(media[1][77, 5], np.float32(9))
    first, second, third = features(open_tower(folder), grids, media)
    assert same(first, alone[grids[0]]) and same(third, alone[grids[2]])
    assert not same(second, alone[grids[1]])


def test_a_slice_of_a_video_sees_no_other(folder: Path) -> None:
    tower, grid = open_tower(folder), (4, 6, 10)
    video = patches_of(grid, WIDTH)
    whole = features(tower, [grid], [video])[0]
    slices = video.reshape(4, 60, WIDTH)
    pictures = features(tower, [(1, 6, 10)] * 4, list(slices[::-1]))
    assert same(whole, np.concatenate(pictures[::-1]))


def test_calls_of_several_threads_and_rows_of_the_model_between_them_change_nothing(
    folder: Path, alone: dict[Grid, Float32]
) -> None:
    engine = Engine(folder, context=256, draft_head=False)
    vision = engine.loaded.checkpoint.config.vision
    assert vision is not None
    tokens = np.arange(200, dtype=np.int32)
    before = engine.prompt(engine.session(), tokens)
    tower = core.load_tower(engine.loaded.model, dict(vision), 1400)
    order = [GRIDS[i:] + GRIDS[:i] for i in range(3)]
    with ThreadPoolExecutor(3) as pool:
        calls = [
            pool.submit(features, tower, grids, [patches_of(grid, WIDTH) for grid in grids])
            for grids in order
        ]
        between = [engine.prompt(engine.session(), tokens) for _ in range(3)]
    for grids, call in zip(order, calls, strict=True):
        for grid, found in zip(grids, call.result(), strict=True):
            assert same(found, alone[grid]), grid
    assert all(logits.tobytes() == before.tobytes() for logits in between)


def test_a_nan_in_a_picture_stays_in_it(folder: Path, alone: dict[Grid, Float32]) -> None:
    grids: list[Grid] = [(1, 2, 64), (3, 4, 6), (1, 14, 22)]
    media = [patches_of(grid, WIDTH) for grid in grids]
    media[1][30] = np.nan  # of the second of three slices
    first, second, third = features(open_tower(folder), grids, media)
    assert same(first, alone[grids[0]]) and same(third, alone[grids[2]])
    finite = np.isfinite(second).all(1).reshape(3, -1)
    assert finite[[0, 2]].all() and not finite[1].any()


def test_the_largest_picture_fits_the_room_and_has_the_bits_that_it_has_beside_others(folder: Path) -> None:
    grid: Grid = (1, 64, 66)  # of which a step takes less than its 1,024 patches
    tower = open_tower(folder, max_patches=64 * 66)
    picture, small = patches_of(grid, WIDTH), patches_of((1, 2, 2), WIDTH)
    lone = features(tower, [grid], [picture])[0]
    between = features(tower, [(1, 2, 2), grid, (1, 2, 2)], [small, picture, small])
    assert same(between[1], lone)
    roomy = open_tower(folder, max_patches=3 * 64 * 66)
    assert same(features(roomy, [(1, 2, 2), grid], [small, picture])[1], lone)


def test_channels_last_are_the_same_kernel(folder: Path, tmp_path: Path, alone: dict[Grid, Float32]) -> None:
    tower = open_tower(write_tower(tmp_path / "mlx", layout="mlx"))
    grid = (1, 14, 22)
    assert same(features(tower, [grid], [patches_of(grid, WIDTH)])[0], alone[grid])
    assert tower.weight_bytes == open_tower(folder).weight_bytes
    assert tower.copied_bytes - open_tower(folder).copied_bytes == 48 * WIDTH * 2


def test_the_bundled_tower_is_within_the_bound_of_the_reference() -> None:
    grid = (1, 16, 12)
    exact, bound = expected(BUNDLED, grid)
    (ours,) = features(open_tower(BUNDLED), [grid], [patches_of(grid, 1536)])
    assert np.abs(ours - exact).max() <= bound


def test_no_media_are_no_features(folder: Path) -> None:
    assert open_tower(folder).features([], []).shape == (0, 64)


def test_a_grid_of_broken_tokens_is_refused(folder: Path) -> None:
    tower = open_tower(folder)
    for grid in ((1, 3, 4), (1, 4, 5), (0, 2, 2), (1, 0, 2), (1, 2, -2)):
        with pytest.raises(
            InvalidArgument, match=r"media 1: a grid of .* expected sides of 2 patches a token"
        ):
            tower.features([(1, 2, 2), grid], [])


def test_a_slice_without_room_is_refused_with_the_numbers(folder: Path) -> None:
    tower = open_tower(folder, max_patches=64)
    patches = patches_of((9, 8, 8), WIDTH)
    assert len(tower.features([(9, 8, 8)], [patches])) == 144
    with pytest.raises(InvalidArgument, match="1 x 8 x 10 patches has larger slices than the 64 patches"):
        tower.features([(1, 8, 10)], [])


def test_patches_have_to_be_as_many_as_the_grids_say(folder: Path) -> None:
    tower, patches = open_tower(folder), patches_of((1, 4, 4), WIDTH)
    with pytest.raises(InvalidArgument, match="1 patches of the grids did not come"):
        tower.features([(1, 4, 4)], [patches[:15]])
    with pytest.raises(InvalidArgument, match="8 patches came where the grids leave 6"):
        tower.features([(1, 4, 4)], [patches[:10], patches[:8]])
    wrongs: list[Any] = [patches.astype(np.float64), patches[:, :95], patches[:, ::2], patches[0], None]
    for wrong in wrongs:
        with pytest.raises(InvalidArgument, match=r"contiguous float32 arrays \(n, 96\)"):
            tower.features([(1, 4, 4)], [wrong])


def test_an_error_of_whoever_makes_patches_comes_out_and_the_tower_goes_on(
    folder: Path, alone: dict[Grid, Float32]
) -> None:
    tower, grid = open_tower(folder), (1, 14, 22)
    patches = patches_of(grid, WIDTH)

    def broken() -> Iterator[Float32]:
        yield patches[:100]
        raise OSError("the file is gone")

    with pytest.raises(OSError, match="the file is gone"):
        tower.features([grid], broken())
    assert same(features(tower, [grid], [patches])[0], alone[grid])


@pytest.mark.parametrize("kernel", ["linear", "patch_place", "slice_attention", "layer_norm"])
def test_a_failed_pass_names_the_tower_and_leaves_it_whole(
    folder: Path, alone: dict[Grid, Float32], kernel: str
) -> None:
    device = core.open_device("cpu", 2)
    tower, grid = open_tower(folder, device), (1, 14, 22)
    patches = patches_of(grid, WIDTH)
    core.testing.fail_dispatch(device, kernel)
    with pytest.raises(DeviceError, match=f"vision tower.*{kernel}|{kernel}.*vision tower"):
        tower.features([grid], [patches])
    assert same(features(tower, [grid], [patches])[0], alone[grid])


def test_a_checkpoint_without_a_tower_has_none(tmp_path: Path) -> None:
    loaded = load_model(write_random(tmp_path), context=64)
    assert loaded.checkpoint.config.vision is None
    with pytest.raises(InvalidArgument, match=r"tensor visual\.patch_embed\.proj\.weight is missing"):
        core.load_tower(loaded.model, dict(VISIONS["odd sizes"]), 64)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"hidden_size": 40}, "hidden_size is 40; the kernels need a multiple of 16"),
        ({"num_heads": 5}, "num_heads is 5; the kernels need a divisor of hidden_size"),
        ({"num_heads": 24}, "hidden_size / num_heads is 2; the kernels need a multiple of 4 up to 96"),
        ({"intermediate_size": 72}, "intermediate_size is 72"),
        ({"patch_size": 2}, r"patch_size\^2 is 24; the kernels need a multiple of 16"),
        ({"in_channels": 17}, "in_channels is 17; the kernels need 1 to 16"),
        ({"temporal_patch_size": 0}, "temporal_patch_size is 0; the kernels need 1 to 16"),
        ({"patch_size": 257}, "patch_size is 257; the kernels need 1 to 256"),
        ({"num_position_embeddings": 35}, "num_position_embeddings is 35"),
        ({"depth": None}, "depth is missing or no integer"),
    ],
)
def test_sizes_that_the_kernels_cannot_run_are_refused(
    folder: Path, change: dict[str, int | None], complaint: str
) -> None:
    loaded = load_model(folder, context=64, draft_head=False)
    with pytest.raises(InvalidArgument, match=complaint):
        core.load_tower(loaded.model, {**VISIONS["odd sizes"], **change}, 64)


@pytest.mark.parametrize("room", [0, 2, 66, 1 << 21])
def test_room_for_no_whole_tokens_is_refused(folder: Path, room: int) -> None:
    loaded = load_model(folder, context=64, draft_head=False)
    with pytest.raises(InvalidArgument, match=f"max_patches is {room}, expected a multiple of 4"):
        core.load_tower(loaded.model, dict(VISIONS["odd sizes"]), room)
