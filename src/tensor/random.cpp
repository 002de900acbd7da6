#include "tensor/random.h"

#include <string>

#include "tensor/checked.h"

namespace tern {

PhiloxState Generator::reserve_rows(std::int64_t count) {
  if (rows_.count < 1 || count % rows_.count != 0)
    fail("random", "expected a tensor of " + std::to_string(rows_.count) + " rows, a part of a batch, but got " + std::to_string(count) +
                       " elements");
  const std::int64_t of_row = count / rows_.count, before = checked_mul("random", rows_.first, of_row);
  if (before % 4 != 0)
    fail("random",
         "expected a part of a batch to begin at a multiple of four elements but got one that begins at " + std::to_string(before));
  const PhiloxState state{seed_, next_ + static_cast<std::uint64_t>(before / 4), base_};
  next_ += positions_of(checked_mul("random", rows_.total, of_row));
  return state;
}

}  // namespace tern
