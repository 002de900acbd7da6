#pragma once
#include "program.h"

namespace study::loops {

/// Throws Error with one line unless all of this holds, for every size of it by arithmetic on the loops, not by running them:
/// - Bounds: every access is within its tensor, given the guards of its statement.
/// - Writes: a tensor has one assignment, which writes each element once; an output's writes all.
/// - Reductions: each step of the axes that it goes over is taken once, on what was assigned before, and by one thread alone.
/// - Order: what is read has been written before, all of it, by statements whose guards hold whenever the reader's do.
/// - Threads: what one thread reads and another writes lies in shared memory, or in the caller's, with a barrier between them; a register
///   is its thread's own. Blocks and cores share nothing but what one nest of loops leaves to the next.
void prove(const Program& program);

/// Puts a barrier wherever a thread reads what another wrote, or writes what another still reads; takes away all others.
void place_barriers(Program& program);

/// Threads of a block; 1 where no loop is bound to threads.
std::int64_t thread_count(const Program& program);
/// Of each loop, how many threads its body takes: the product of the bound loops' extents below it, the most of all ways down.
std::vector<std::int64_t> threads_below(const Program& program);

/// How many of a shared tensor a block has: one for each thread of the loops around its uses.
std::int64_t thread_copies(const Program& program, const std::vector<Site>& sites, int tensor);

}  // namespace study::loops
