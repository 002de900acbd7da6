#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "tensor/kernel.h"
#include "tensor/storage.h"

namespace tern::kernels {

// Note [Collectives as kernels]
// For a program (compile/program.h) a collective is two kernels: its begin, and the wait for its end, between which others run. Both update
// all of its tensors, so whatever uses these stays before the one or after the other, and their memory is kept between. Both update
// `order` as well, an element that the group has for this alone: so its collectives stay in the order in which all ranks begin them.

struct BeginCollective;

/// Runner of collectives: a process group (parallel/process_group.h).
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual void begin(const BeginCollective& collective) = 0;  ///< starts it
  virtual void end(std::int64_t number) = 0;                  ///< waits for its result, unless it has ended
  std::vector<Ref<Storage>> memory;                           ///< of y and x of the next one to begin, which holds it until its end
};

enum class CollectiveKind : std::uint8_t { all_reduce, broadcast, reduce_scatter, all_gather };
/// "all_reduce", ...
inline const char* name(CollectiveKind kind) {
  constexpr const char* names[] = {"all_reduce", "broadcast", "reduce_scatter", "all_gather"};
  return names[static_cast<int>(kind)];
}

/// Starts a collective: see parallel::ProcessGroup.
struct BeginCollective {
  CollectiveKind kind = CollectiveKind::all_reduce;
  std::int64_t how = 0;     ///< the ReduceOp, or the root of a broadcast
  std::int64_t number = 0;  ///< of the group's collectives that have not ended
  InOut y;                  ///< result
  InOut x;                  ///< operand of another shape, whose other parts a reduction may overwrite
  InOut order;              ///< (1), u8: the group's
  std::shared_ptr<Communicator> group;
  void run(Cpu) const { group->begin(*this); }
  void run(Cuda) const { group->begin(*this); }
};

/// Waits for a collective. On a GPU the stream waits.
struct EndCollective {
  CollectiveKind kind = CollectiveKind::all_reduce;
  std::int64_t number = 0;
  InOut y, x, order;
  std::shared_ptr<Communicator> group;
  void run(Cpu) const { group->end(number); }
  void run(Cuda) const { group->end(number); }
};

}  // namespace tern::kernels
