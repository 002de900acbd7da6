#pragma once
#include "loops/interpret.h"
#include "loops/proof.h"
#include "loops/schedule.h"
#include "message.h"

namespace study::loops::test {

/// The kernel under a schedule's text, each line proved.
inline Program scheduled(const Program& plain, const std::string& text) { return schedule(plain, parse_schedule(text, "s"), "s"); }
inline Program scheduled(const std::string& name, const std::string& text) { return scheduled(kernel(name, usual_sizes(name)), text); }
/// Checks it at small odd sizes.
inline double check_text(const std::string& name, const std::string& text) {
  return check_schedule(name, [&](const Program& plain) { return scheduled(plain, text); });
}

/// A product with tiles in shared memory and registers of a GPU, as lessons have it.
inline const std::string gpu_product = R"(split i by 4, 2 -> io, ti, i
split j by 4, 2 -> jo, tj, j
split k by 8 -> ko, k
reorder io, jo, ko, ti, tj, k, i, j
keep c in registers at jo
keep a in shared at ko as k, i pad 1
keep b in shared at ko
fuse a_i, a_k -> a_e
split a_e by 16 -> a_e, a_t
fuse b_k, b_j -> b_e
split b_e by 16 -> b_e, b_t
bind io block, jo block, ti thread, tj thread, a_t thread, b_t thread
)";
/// Rows shared out among 8 threads, each with vectors of 4.
inline const std::string gpu_softmax = R"(split c by 8, 4 -> c, t, v
part m, s by t in shared
bind r block, t thread
keep x in registers at r
vectorise v in x_r, y
unroll c
)";

}  // namespace study::loops::test
