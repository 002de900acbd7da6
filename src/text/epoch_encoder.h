#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "text/bpe.h"

namespace tern::text {

// Encodes the lines of a corpus anew for each epoch, with BPE-dropout (EncodeOptions). The lines are split into words once, and a word that
// loses no merge, as most do, takes its ids from a table, so that an epoch costs a small part of the first encoding. Safe to use from
// several threads at once.
class EpochEncoder {
 public:
  // `dropout` and `seed` are those of EncodeOptions; its `line` is first_line + i for lines[i]. Throws std::invalid_argument for a dropout
  // outside [0, 1].
  EpochEncoder(const Tokenizer& tokenizer, std::span<const std::string> lines, double dropout, std::uint64_t seed,
               std::uint64_t first_line = 0);

  // Returns tokenizer.encode(lines[i], {dropout, seed, epoch, first_line + i}) for each i. `threads` does not change the result.
  std::vector<std::vector<std::int32_t>> encode(std::uint64_t epoch, int threads = 1) const;

 private:
  void encode(std::uint64_t epoch, std::size_t first, std::size_t last, std::vector<std::vector<std::int32_t>>& out) const;

  Tokenizer tokenizer_;
  double dropout_;
  std::uint64_t seed_, first_line_;
  std::string bytes_;                                 // of all distinct words, one after the other
  std::vector<std::int32_t> plain_ids_;               // ids of these words without dropout, one word after the other
  std::vector<std::size_t> byte_begins_, id_begins_;  // offsets of each word in bytes_ and plain_ids_, and the end
  std::vector<std::int64_t> pieces_;                  // of all lines: the index of a word, or ~id of an added token
  std::vector<std::size_t> line_begins_;              // offset of each line in pieces_, and the end
};

}  // namespace tern::text
