#pragma once
#include "parallel/data_parallel.h"
#include "train/optimizer.h"

namespace tern::parallel {

/// Shards the optimizer of a data parallel model (ZeRO's first stage, Note [Exchange]): each rank keeps the moments of its part of
/// every bucket and updates that part; all_gather then collects the parameters. Works with any optimizer whose parameters are all the
/// model's, including those that are added later (DataParallel::add, then the optimizer's add_group). Gradients are reduced by all_reduce
/// or, with DataParallelOptions::scatter_gradients, by reduce_scatter, which together with the all_gather sends no more than without
/// sharding. The weights equal those of the unsharded optimizer up to rounding of the gradients' sums. step(), state() and
/// gather_masters() are to be called on all ranks. Implies overlap_optimizer; the all_gather of a bucket runs during the update of the
/// next.
void shard_optimizer(train::Optimizer& optimizer, DataParallel& model);

/// Overlaps the optimizer of a data parallel model with the reductions: it updates the buckets that have been reduced while the last ones
/// are still in progress (Note [Exchange]). train::update then calls UpdateOptions::synchronize only if it clips or scales
/// gradients. The weights are bitwise the same. With GradientSync::flat and per_parameter it waits for all gradients.
void overlap_optimizer(train::Optimizer& optimizer, DataParallel& model);

}  // namespace tern::parallel
