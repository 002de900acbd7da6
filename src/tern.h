#pragma once
// Everything of the library in one include. Each part can be included by itself as well.
#include <tern/version.h>

#if TERN_HAS_CUDA && !defined(TERN_CUDA)
#error "this tern was built with CUDA: compile with -DTERN_CUDA=1, as tern::tern and pkg-config do"
#endif

#include "autodiff/anomaly.h"
#include "autodiff/engine.h"
#include "compile/compile.h"
#include "data/dlpack.h"
#include "data/loader.h"
#include "data/prepare.h"
#include "data/token_file.h"
#include "io/gguf.h"
#include "io/run_directory.h"
#include "io/safetensors.h"
#include "models/gguf.h"
#include "models/hugging_face.h"
#include "nn/nn.h"
#include "ops/attention.h"
#include "ops/autocast.h"
#include "ops/captured_step.h"
#include "ops/checkpoint.h"
#include "ops/conv.h"
#include "ops/factory.h"
#include "ops/gradcheck.h"
#include "ops/index.h"
#include "ops/linalg.h"
#include "ops/loss.h"
#include "ops/matmul.h"
#include "ops/normalize.h"
#include "ops/pointwise.h"
#include "ops/quantize.h"
#include "ops/random.h"
#include "ops/recurrent.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "parallel/data_parallel.h"
#include "parallel/process_group.h"
#include "profile/memory_history.h"
#include "profile/op_table.h"
#include "profile/profiler.h"
#include "tensor/from_blob.h"
#include "tensor/tensor.h"
#include "text/batching.h"
#include "text/bpe.h"
#include "text/chat_template.h"
#include "text/corpus.h"
#include "text/metrics.h"
#include "train/train.h"
#include "trainer/trainer.h"

/// Tensors, autodiff, ops, and what a thread computes with: its device, stream, precision and random numbers (Context).
namespace tern {
/// Modules: layers, transformers, what a Visitor does with their parameters, and generation of text.
namespace nn {}
/// Training: the step, optimizers, schedules, clipping, loss scaling, averages, precision.
namespace train {}
/// Processes that train one model together: how they meet, collectives, data parallel training, sharding.
namespace parallel {}
/// Text without tensors: corpora, the byte-level BPE, batches of ids, BLEU and chrF.
namespace text {}
/// Datasets, the loader that makes batches ahead, token files, packing.
namespace data {}
/// Profiles of time and memory: spans, traces, tables of ops, histories of an allocator.
namespace profile {}
}  // namespace tern
