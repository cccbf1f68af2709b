// How kernels are launched: threads of a threadgroup, and what a threadgroup covers of a tiled axis. Shared
// by the kernels and by the tables that a Metal device is handed.
#pragma once

#include "metal/params.h"

namespace flashnext {

FLASHNEXT_CONSTANT int kSimdLanes = 32;

// Products: each simdgroup has kSimdColumns columns of a stored matrix, for up to kProductRows rows at once.
FLASHNEXT_CONSTANT int kSimdColumns = 4;
FLASHNEXT_CONSTANT int kProductRows = 8;
FLASHNEXT_CONSTANT int kProductThreads = 128;
FLASHNEXT_CONSTANT int kProductTile = kProductThreads / kSimdLanes * kSimdColumns;
FLASHNEXT_CONSTANT int kRowBlock = 64;  // rows of a threadgroup: any window, and prompts have enough of them
// A threadgroup of expert_down keeps the sums of kDownRows rows in its memory.
FLASHNEXT_CONSTANT int kDownThreads = 64;
FLASHNEXT_CONSTANT int kDownTile = kDownThreads / kSimdLanes * kSimdColumns;
FLASHNEXT_CONSTANT int kDownRows = 512;

FLASHNEXT_CONSTANT int kRowThreads = 256;     // kernels with a threadgroup a row
FLASHNEXT_CONSTANT int kColumnThreads = 256;  // kernels with a thread a column
FLASHNEXT_CONSTANT int kDeltaThreads = 512;
FLASHNEXT_CONSTANT int kAttentionThreads = 256;
FLASHNEXT_CONSTANT int kAttentionHeads = 4;  // heads of one kv head that share the loads of keys and values
FLASHNEXT_CONSTANT int kScoreThreads = 128;
FLASHNEXT_CONSTANT int kScoreTile = 32;  // blocks
FLASHNEXT_CONSTANT int kSelectThreads = 256;
FLASHNEXT_CONSTANT int kRouterThreads = 32;
FLASHNEXT_CONSTANT int kSortThreads = 512;
FLASHNEXT_CONSTANT int kRoundThreads = 256;
FLASHNEXT_CONSTANT int kBlockThreads = 256;  // sampler kernels with a threadgroup a block of ids
FLASHNEXT_CONSTANT int kPickThreads = 1024;  // sampler kernels with a threadgroup a row
// slice_attention: each simdgroup has kSlicePatches / 8 patches.
FLASHNEXT_CONSTANT int kSliceThreads = 256;
FLASHNEXT_CONSTANT int kSlicePatches = 32;

}  // namespace flashnext
