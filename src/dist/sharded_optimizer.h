#pragma once
#include "dist/data_parallel.h"
#include "train/optimizer.h"

namespace tern::dist {

/// Shares the optimizer of a data parallel model out among the ranks (ZeRO's first stage, Note [Sharded optimizer]): each keeps the moments
/// of its part of every bucket, updates that, and all_gather brings the parameters together again. Any optimizer, all of whose parameters
/// are the model's, also such as are added later (DataParallel::add, then the optimizer's add_group). Gradients come by all_reduce or, with
/// DataParallelOptions::scatter_gradients, by reduce_scatter: what is sent is then no more than without sharding.
/// Weights are, to rounding of the gradients' sums, those of the optimizer alone. All ranks call step(), state() and gather_masters().
void shard_optimizer(train::Optimizer& optimizer, DataParallel& model);

}  // namespace tern::dist
