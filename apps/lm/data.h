#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/token_file.h"
#include "text/bpe.h"

namespace tern::lm {

/// Token files, read as one list.
class TokenList {
 public:
  /// Appends a file.
  void add(data::TokenFile file);
  std::int64_t size() const { return ends_.empty() ? 0 : ends_.back(); }  ///< number of tokens
  /// Reads tokens [first, first + to.size()). Throws Error for a range outside of the list.
  void read(std::int64_t first, std::span<std::int64_t> to) const;

 private:
  std::vector<data::TokenFile> files_;
  std::vector<std::int64_t> ends_;  ///< tokens up to the end of each file
};

/// The path of a shard of training tokens: DIR/train-00000.bin.
std::string shard_path(const std::string& directory, std::size_t index);

/// The directory that `tern-lm prepare` writes: tokenizer.json, train-00000.bin and more shards, valid.bin, and data.json, the last, with
/// "tern_data" (1), "vocab", "end_of_text", "shard_tokens" (of each), "valid_tokens", "train_bytes", "valid_bytes" and "digest".
struct PreparedData {
  /// Throws FileError, one line, unless data.json is whole and the files are as it says.
  static PreparedData open(const std::string& path);

  text::Tokenizer tokenizer;
  std::int64_t end_of_text;  ///< token after each document; -1: none
  TokenList train, valid;
  std::int64_t train_bytes, valid_bytes;  ///< of the text
  std::string digest;                     ///< checksum of all tokens
};

}  // namespace tern::lm
