#pragma once
#include "dist/data_parallel.h"
#include "train/optimizer.h"

namespace tern::dist {

/// Shares the optimizer of a data parallel model out among the ranks (ZeRO's first stage, Note [Sharded optimizer]): each keeps the moments
/// of its part of every bucket, updates that, and all_gather brings the parameters together again. Any optimizer, all of whose parameters
/// are the model's, also such as are added later (DataParallel::add, then the optimizer's add_group). Gradients come by all_reduce or, with
/// DataParallelOptions::scatter_gradients, by reduce_scatter: what is sent is then no more than without sharding.
/// Weights are, to rounding of the gradients' sums, those of the optimizer alone. All ranks call step(), state() and gather_masters().
/// Updates go with the gradients' arrival, as overlap_optimizer says, and a bucket's parameters are gathered beside the next one's update.
void shard_optimizer(train::Optimizer& optimizer, DataParallel& model);

/// Lets an optimizer of a data parallel model update what has arrived while the last buckets are on their way (Note [Gradients that
/// arrive]): train::update then calls no UpdateOptions::synchronize but where it clips or scales. The weights are the same bits. With the
/// ways that send after backward (flat, per_parameter) it waits for all gradients.
void overlap_optimizer(train::Optimizer& optimizer, DataParallel& model);

}  // namespace tern::dist
