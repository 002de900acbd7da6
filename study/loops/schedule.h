#pragma once
#include <string_view>

#include "program.h"

namespace study::loops {

/// A line of a schedule: a primitive, and the words between its marks. Its text, from which it is parsed:
///
///   split i by 8, 4 -> io, ii, iv     i is io * 32 + ii * 4 + iv; a guard where that does not divide its extent
///   fuse i, j -> ij                   two loops, one directly in the other, as one
///   reorder k, i, j                   loops that stand directly in each other, in another order
///   bind i block, t thread            iterations side by side: block and thread of a GPU, or cores
///   vectorise v                       an innermost loop as one operation on a vector
///   unroll k, i                       a loop as its steps, one after the other
///   keep a in shared at k             what the body of k reads of a is copied first, to shared memory or to registers; what it adds to a
///                                     is summed there first.  as k, i: axes in that order in memory; pad 4: between its rows
///   part s by t                       a reduction in parts, one for each step of t, which are reduced afterwards
///   at c compute e                    the statement that writes e goes into the loop c of the one that reads it
///
/// A name means all loops of that name; `split`, `reorder`, `vectorise` and `unroll` take `in x, y`: those around writes of x or y alone.
struct Line {
  std::string primitive;
  std::vector<std::string> names;          ///< loops or tensors, as listed first
  std::vector<std::int64_t> factors = {};  ///< split
  std::vector<std::string> results = {};   ///< split, fuse
  std::vector<Bind> binds = {};            ///< bind, one a name
  std::vector<std::string> of = {};        ///< in: tensors; part: loops; at: the producer
  std::optional<Tensor::Kind> place = {};  ///< keep, part
  std::string loop = {};                   ///< keep: at
  std::vector<std::string> order = {};     ///< keep: as
  std::int64_t pad = 0;
  int number = 0;  ///< in the file, from 1
  bool operator==(const Line&) const = default;
};

/// The lines of a text; # begins a comment. Throws Error "FILE:LINE: expected ... but got ...", in one line.
std::vector<Line> parse_schedule(std::string_view text, const std::string& file);
std::string to_text(const Line& line);

/// The program after a line, with the barriers that it needs. Throws Error that says why it cannot be done. It does not prove the result.
Program apply(const Program& program, const Line& line);

/// A program after all lines, each proved: f(line, program) after each. Errors begin with FILE:LINE.
Program schedule(Program program, const std::vector<Line>& lines, const std::string& file,
                 const std::function<void(const Line&, const Program&)>& f = {});

}  // namespace study::loops
