#pragma once
#include <algorithm>
#include <functional>
#include <optional>
#include <vector>

#include "compile/program.h"

namespace tern::compiler {

// Note [Groups]
// Calls that work element by element on one shape are a group, which runs as one: on the CPU by chunks (Note [Chunks of a group]), on a GPU
// as a kernel of its own (compile/cuda_text.h), in which sums and maxima of rows join them, and sums of columns, which are ready only after
// the group. A value that only the group uses needs no memory.
//
// A group has a level, which is above those of all groups that it depends on: that write what it reads or writes, or read what it writes.
// So groups of one level do not depend on each other. A call joins those that it depends on which have the highest level, if that is its
// own then; or one above them that shares an operand; and takes in those of lower levels on which nothing else depends. Each block that a
// group writes is seen by one view of its members, so that each element depends on itself alone. Groups run in the order of their last
// members, as far as they do not depend on each other.

/// Use of a block by a member of a group, with the strides of the group's extents.
struct Use {
  std::size_t block = Call::Place::none;
  std::int64_t offset = 0;
  Strides strides;
  DType dtype = DType::f32;
  bool is_written = false;
  bool is_sum = false;  ///< written with sums of columns
  /// The same elements, whatever is done to them.
  bool is_of(const Use& other) const {
    return block == other.block && offset == other.offset && strides == other.strides && dtype == other.dtype;
  }
};

/// Calls that run as one; a single call that cannot is alone.
struct Group {
  std::vector<std::size_t> calls;  ///< indices, in the order in which they run
  bool is_open = false;            ///< others may join
  Shape shape;                     ///< of the elements
  std::optional<int> row_dims;     ///< of a group of rows: the first dimensions, which number the rows
  std::vector<Use> uses;           ///< each once
  std::size_t level = 0;
  std::vector<Group> same;  ///< groups that do the same to other tensors, on a GPU: one kernel for all

  /// All calls, those of `same` after the own ones.
  std::vector<std::size_t> all_calls() const;
  std::int64_t rows() const;
  /// Dimensions that strides of uses have: those of the shape, or of the rows and one for the columns.
  Shape extents() const;
  std::int64_t columns() const { return numel(shape) / std::max<std::int64_t>(rows(), 1); }
};

/// The view with its offset in its block for an address, as overlap() takes those of one block.
View window_of(View view, const Call::Place& place);
/// Bytes of a view's elements, each once: a stride of 0 repeats some.
std::int64_t bytes_of(const View& view);

/// Use that a member makes of a view; nothing if its elements are not those of the group.
std::optional<Use> use_of(const Group& group, const View& view, kernels::Access access, const Call::Place& place);

/// Shape of a call's elements, of which there are none if it uses no memory.
Shape shape_of(const Call& call);

/// A group of one call, to which others can be joined if the kind of device allows it.
Group alone(std::size_t index, const Call& call, bool is_gpu);
/// Calls that are members as a group of these elements; nothing if they cannot be one.
std::optional<Group> group_of(const std::vector<std::size_t>& indices, const Shape& shape, const std::optional<int>& row_dims,
                              const std::vector<Call>& calls);
/// Both as one group, whose level is the first one's; nothing if they cannot be one.
std::optional<Group> merged(const Group& a, const Group& b, const std::vector<Call>& calls, const std::vector<Block>& blocks);

/// For each call those before it that it depends on: that write what it reads or writes, or read what it writes.
std::vector<std::vector<std::size_t>> dependences(const std::vector<Call>& calls, const std::vector<Block>& blocks);
/// The nodes that calls are in, each once, in the order of their last calls, as far as their calls do not depend on each other. A node is a
/// number below that of the calls.
std::vector<std::size_t> in_order(const std::vector<std::vector<std::size_t>>& before, const std::vector<std::size_t>& node_of);

/// The calls in groups, in the order in which they run, for the kind of device.
std::vector<Group> find_groups(const std::vector<Call>& calls, const std::vector<Block>& blocks, bool is_gpu);

/// Note [Chunks of a group]: on the CPU a group (Note [Groups]) runs all of its kernels on a chunk of rows before it goes on to the next.
/// Memory that only they use is as large as a chunk and stays in the cache: ten additions in a row read and write memory once, not ten
/// times. The kernels are those of the program, each on a part of its views, so every element has the bits that it has without.
///
/// The group as one call, whose kernels are copies of its calls'; nothing if it would not pay. lives_inside(block): only the group uses it.
std::optional<Call> chunked(const Group& group, const std::vector<Call>& calls, const std::function<bool(std::size_t)>& lives_inside);
/// True if it would pay.
bool runs_in_chunks(const Group& group);

/// Calls f(view, access, place) for the views of a call.
template <class F>
void each_view(const Call& call, F f) {
  struct Visit : KernelCall::Visitor {
    F& f;
    std::vector<Call::Place>::const_iterator place;
    Visit(F& f_, const Call& call_) : f(f_), place(call_.places.begin()) {}
    void view(View& view, kernels::Access access) override { f(view, access, *place++); }
  } visitor(f, call);
  call.kernel->visit(visitor);
}

/// True if a call writes to a block.
inline bool writes(const Call& call, std::size_t block) {
  bool result = false;
  each_view(call, [&](const View&, kernels::Access access, const Call::Place& place) {
    result |= place.block == block && access != kernels::Access::read;
  });
  return result;
}

}  // namespace tern::compiler
