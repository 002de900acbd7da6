#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "text/bpe.h"

namespace tern::text {

// Lines that are encoded anew for each epoch of a training, with BPE-dropout. They are cut into words once, and a word that loses no
// merge, as most do, has its ids from a table: an epoch costs a small part of a first encoding. Safe to use from several threads at once.
class EpochEncoder {
 public:
  // `dropout` and `seed` as in EncodeOptions, which is said to throw for what; line i draws as line first_line + i does there.
  EpochEncoder(const Tokenizer& tokenizer, std::span<const std::string> lines, double dropout, std::uint64_t seed,
               std::uint64_t first_line = 0);

  // tokenizer.encode(lines[i], {dropout, seed, epoch, first_line + i}) for each i, by that many threads; their number changes nothing.
  std::vector<std::vector<std::int32_t>> encode(std::uint64_t epoch, int threads = 1) const;

 private:
  void encode(std::uint64_t epoch, std::size_t first, std::size_t last, std::vector<std::vector<std::int32_t>>& out) const;

  Tokenizer tokenizer_;
  double dropout_;
  std::uint64_t seed_, first_line_;
  std::string bytes_;                                 // of all distinct words, one after the other
  std::vector<std::int32_t> plain_;                   // their ids without dropout, likewise
  std::vector<std::size_t> byte_begins_, id_begins_;  // of each word in these, and the end
  std::vector<std::int64_t> pieces_;                  // of all lines: a word's number, or ~id of an added token
  std::vector<std::size_t> line_begins_;              // of each line in `pieces_`, and the end
};

}  // namespace tern::text
