#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tern {

/// A program as plain data, for pictures and figures: Compiled::overview().
struct ProgramOverview {
  /// Part of a block that a group reads or writes.
  struct Operand {
    std::size_t block = 0;    ///< index among the blocks
    std::int64_t offset = 0;  ///< of its first byte in the block
    std::int64_t bytes = 0;   ///< of its elements, each once
    std::string type;         ///< dtype and shape, "f32 (16, 96)"
    bool is_read = false;     ///< before the group writes it
    bool is_written = false;  ///< by the group
  };
  /// Kernels that run as one, or a kernel alone, in the order in which a run calls them.
  struct Group {
    std::vector<std::string> kernels;  ///< the op of each, or the kernel's own name
    std::string module;                ///< path and type of the module that ran the first of them; may be empty
    std::vector<Operand> operands;     ///< each once
    bool is_product = false;           ///< the kernels are products of one weight that run as one product
  };
  /// Memory that groups use.
  struct Block {
    std::string kind;         ///< input, outside, constant or kept, as in the text of kernels; empty for one in the arena
    std::int64_t bytes = 0;   ///< size
    std::int64_t offset = 0;  ///< in the arena
    bool is_used = false;     ///< false for one that lives inside of a group
    std::size_t first = 0;    ///< group that uses it first
    std::size_t last = 0;     ///< group that uses it last
  };
  std::vector<Group> groups;     ///< what a run calls
  std::vector<Block> blocks;     ///< all memory
  std::size_t kernels = 0;       ///< number of kernels that the function ran
  std::int64_t arena_bytes = 0;  ///< size of the arena

  /// The largest sum of the sizes of blocks in the arena that are in use at the same time.
  std::int64_t alive_bytes() const;
  /// The memory that the blocks in the arena would take one by one.
  std::int64_t separate_bytes() const;
  std::string groups_text() const;  ///< a line for each group
  std::string memory_text() const;  ///< a line for each block in the arena, and their sum beside its size
};

}  // namespace tern
