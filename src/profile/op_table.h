#pragma once
#include <string>
#include <vector>

#include "profile/profile.h"

namespace tern::profile {

/// All calls of an op in a pass.
struct OpRow {
  std::string op;               ///< name of the op
  std::string pass;             ///< "forward", or "" outside any
  std::int64_t calls = 0;       ///< in the steps
  std::int64_t host_ns = 0;     ///< on the CPU, without passes within it, such as recompute within a backward
  std::int64_t product_ns = 0;  ///< of that, its GEMM kernels on the CPU
  std::int64_t device_ns = 0;   ///< of its work on a GPU
  double flops = 0;             ///< floating-point operations; 0: unknown
  double bytes = 0;             ///< of operands and results; 0: unknown
  bool has_kernel = false;      ///< false for a view and whatever else runs none
};
/// Largest first.
std::vector<OpRow> op_rows(const Profile& profile);

/// The time of a pass, without passes within it; "" for what runs in none.
struct PassRow {
  std::string pass;             ///< its name
  std::int64_t host_ns = 0;     ///< of the pass
  std::int64_t op_ns = 0;       ///< of the ops in it
  std::int64_t kernel_ns = 0;   ///< of the kernels: on a GPU theirs, else those of the CPU
  std::int64_t product_ns = 0;  ///< of GEMM kernels
  std::int64_t kernels = 0;     ///< their number
};
/// In the order in which they first begin. The sum of host_ns is the wall time, and what threads that mark no steps did beside them.
std::vector<PassRow> pass_rows(const Profile& profile);

/// The work of a thread within the steps.
struct ThreadRow {
  std::string thread;        ///< its name
  std::int64_t ops = 0;      ///< calls
  std::int64_t kernels = 0;  ///< on a GPU those that it launched by themselves
  std::int64_t op_ns = 0;    ///< on the CPU
};
/// A row for each thread that was watched, in the order in which they came.
std::vector<ThreadRow> thread_rows(const Profile& profile);

/// All collectives of a kind.
struct CollectiveRow {
  std::string op;               ///< its name: "all_reduce", or that of NCCL's kernel
  std::int64_t calls = 0;       ///< in the steps
  std::int64_t total_ns = 0;    ///< that they ran
  std::int64_t exposed_ns = 0;  ///< of that, with nothing beside: the thread stood still, or no other kernel ran on the GPU
  double bytes = 0;             ///< 0: unknown
};
/// Between processes, largest first: on CPUs as the engine tells, on a GPU NCCL's kernels, copies to other GPUs, and what else runs in the
/// pass "communication".
std::vector<CollectiveRow> collective_rows(const Profile& profile);

/// Time of attention modules by kind of kernel, their projections left out.
struct AttentionTime {
  std::int64_t product_ns = 0;  ///< GEMM kernels
  std::int64_t softmax_ns = 0;  ///< with the mask, as a composition or one kernel
  std::int64_t fused_ns = 0;    ///< kernels that do both
  std::int64_t other_ns = 0;    ///< transposes, rotary positions, dropout
};
/// Of a pass by its name. On a GPU the time of its kernels, else that of the CPU's.
AttentionTime attention_time(const Profile& profile, const std::string& pass);

/// Rates that this machine was measured to reach; 0 where they are unknown.
struct Roofline {
  double flops = 0;  ///< FLOP/s of a large product
  double bytes = 0;  ///< bytes/s of a large copy, read and written
};

/// Markdown: totals by pass, ops, communication, kernels by pass, attention, modules. "-" stands for what is not known.
std::string op_table(const Profile& profile, const Roofline& roofline = {});

}  // namespace tern::profile
