#pragma once
#include "compile/program.h"

namespace tern::compiler {

/// Note [Chunks of a chain]: kernels of one shape that follow each other and work element by element become one call on the CPU, which runs
/// all of them on a chunk of rows before it goes on to the next. What only they use is as large as a chunk and stays in the cache: ten
/// additions in a row read and write memory once, not ten times. The kernels are those of the program, each on a part of its views, so
/// every element has the bits that it has without.
///
/// Replaces such kernels of a program by one each.
void chunk_chains(std::vector<Call>& calls, std::vector<Block>& blocks);

}  // namespace tern::compiler
