#pragma once
#include <string>
#include <vector>

#include "profile/profiler.h"

namespace tern::profile {

/// All calls of an op in a pass.
struct OpRow {
  std::string op;               ///< name of the op
  std::string pass;             ///< "forward"; "" outside any pass
  std::int64_t calls = 0;       ///< calls in the steps
  std::int64_t host_ns = 0;     ///< time on the CPU, without passes within it, such as recompute within backward
  std::int64_t product_ns = 0;  ///< part of host_ns in GEMM kernels on the CPU
  std::int64_t device_ns = 0;   ///< time of its work on a GPU
  double flops = 0;             ///< floating-point operations; 0: unknown
  double bytes = 0;             ///< bytes of operands and results; 0: unknown
  bool has_kernel = false;      ///< false for an op without a kernel, such as a view
};
/// The ops in the steps of a profile, by decreasing time.
std::vector<OpRow> op_rows(const Profile& profile);

/// The time of a pass, without passes within it. Work outside any pass has the name "".
struct PassRow {
  std::string pass;             ///< its name
  std::int64_t host_ns = 0;     ///< time on the CPU
  std::int64_t op_ns = 0;       ///< time of its ops on the CPU
  std::int64_t kernel_ns = 0;   ///< time of its kernels, on the profile's device
  std::int64_t product_ns = 0;  ///< time of its GEMM kernels
  std::int64_t kernels = 0;     ///< number of its kernels
};
/// The passes in the order of their first start. The sum of host_ns is the wall time plus the time of the other threads' work.
std::vector<PassRow> pass_rows(const Profile& profile);

/// The work of a thread within the steps.
struct ThreadRow {
  std::string thread;        ///< its name
  std::int64_t ops = 0;      ///< calls of ops
  std::int64_t kernels = 0;  ///< kernels; on a GPU without those of graphs
  std::int64_t op_ns = 0;    ///< time of its ops on the CPU
};
/// A row for each watched thread, in the order of registration.
std::vector<ThreadRow> thread_rows(const Profile& profile);

/// All collectives of a kind.
struct CollectiveRow {
  std::string op;               ///< its name: "all_reduce", or that of NCCL's kernel
  std::int64_t calls = 0;       ///< calls in the steps
  std::int64_t total_ns = 0;    ///< duration of all calls
  std::int64_t exposed_ns = 0;  ///< part without overlap: the thread waited, or no other kernel ran on the GPU
  double bytes = 0;             ///< bytes of the tensors; 0: unknown
};
/// The collectives between processes, by decreasing time. On CPUs the engine reports them; on a GPU they are NCCL's kernels, copies to
/// other GPUs, and other work in the pass "communication".
std::vector<CollectiveRow> collective_rows(const Profile& profile);

/// Time of attention modules by kind of kernel, without their projections.
struct AttentionTime {
  std::int64_t product_ns = 0;  ///< GEMM kernels
  std::int64_t softmax_ns = 0;  ///< softmax and mask, in one or several kernels
  std::int64_t fused_ns = 0;    ///< fused attention kernels
  std::int64_t other_ns = 0;    ///< transposes, rotary positions, dropout
};
/// The attention time of a pass, of its kernels on the profile's device.
AttentionTime attention_time(const Profile& profile, const std::string& pass);

/// Measured peak rates of this machine; 0 if unknown.
struct Roofline {
  double flops = 0;  ///< FLOP/s of a large GEMM
  double bytes = 0;  ///< bytes/s of a large copy, read and written
};

/// A report in Markdown: totals by pass, ops, communication, kernels by pass, attention, modules. "-" is an unknown value.
std::string op_table(const Profile& profile, const Roofline& roofline = {});

}  // namespace tern::profile
