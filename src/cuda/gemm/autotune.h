#pragma once
#include <cublasLt.h>

#include <array>
#include <functional>
#include <optional>
#include <variant>
#include <vector>

#include "cuda/gemm/tf32_gemm.h"

namespace tern::gpu {

/// Note [Choice of algorithms]
/// cuBLASLt ranks its algorithms by a model of the device that is off by up to a fifth, so the first eight are timed once for each new kind
/// of problem, in a graph, where they take as long as in a step's; for 3xTF32 the first four of tf32_configs. The winner determines how
/// sums are split, and so the last bits. To give the same bits in every later run on a machine, the choice is kept in a file, and a choice
/// other than the first is taken only if it is faster by more than the noise; among equals, one whose result is the first's bit for bit.
/// Nothing is timed during graph capture, nor for problems that take no time: those get the first candidate. Within NoAutotune, which
/// decoding uses, all do; and with TERN_TUNE=0 in the environment all do everywhere, and the file is neither read nor written: the same
/// bits on every machine of a kind.

/// Algorithm of a GEMM: one of cuBLASLt's, or a configuration of tf32_gemm.
using GemmAlgorithm = std::variant<cublasLtMatmulAlgo_t, TileConfig>;

struct Candidate {
  GemmAlgorithm algorithm;
  std::size_t workspace_bytes = 0;
};

/// Queues the problem with this candidate, into `out`; returns false if it cannot be launched.
using LaunchCandidate = std::function<bool(const Candidate& candidate, void* out, void* workspace, Stream stream)>;

/// Times the candidates, ranked by expected speed, on the given operands, by the rule of the note. Returns null if none can be launched.
/// Overwrites c of an overwriting problem.
const Candidate* autotune(const std::vector<Candidate>& ranked, const GemmProblem& problem, const GemmOperands& operands, Stream stream,
                          const LaunchCandidate& launch);

/// Numbers that the choice of an algorithm depends on.
using ProblemKey = std::array<std::uint64_t, 11>;
/// Kind of an algorithm and its parameters, as stored in the file.
using AlgorithmWords = std::array<std::uint64_t, 9>;
AlgorithmWords to_words(const GemmAlgorithm& algorithm);
GemmAlgorithm from_words(const AlgorithmWords& words);

/// False with TERN_TUNE=0 in the environment: see Note [Choice of algorithms].
bool autotune_is_on();

/// Algorithm that an earlier call or process chose for the problem. Stored in $XDG_CACHE_HOME/tern or ~/.cache/tern, in a file for each
/// kind of GPU and version of cuBLAS.
std::optional<GemmAlgorithm> cached_algorithm(Device device, const ProblemKey& key);
/// Stores a choice for this process and later ones; only for this one if the file cannot be written.
void cache_algorithm(Device device, const ProblemKey& key, const GemmAlgorithm& algorithm);

}  // namespace tern::gpu
