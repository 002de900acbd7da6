#pragma once
#include <cstdint>
#include <string>

#include "data/token_file.h"
#include "text/bpe.h"

namespace tern::lm {

using data::TokenList;

/// The directory that `tern-lm prepare` writes: tokenizer.json, shards of tokens in llm.c's format (train-00000.bin, valid-00000.bin and
/// more), and data.json, the last, with "tern_data" (1), "vocab", "end_of_text", "train_tokens", "valid_tokens", "train_bytes",
/// "valid_bytes", and the checksums of "tokenizer" and "shards".
struct PreparedData {
  /// Throws FileError, one line, unless data.json is whole and the files have the tokens and the checksums that it says.
  static PreparedData open(const std::string& path);

  text::Tokenizer tokenizer;
  std::int64_t end_of_text;  ///< token after each document; -1: none
  TokenList train, valid;
  std::int64_t train_bytes, valid_bytes;  ///< of the text
  std::string digest;                     ///< checksum of all tokens
};

/// io::Checksum of a file's bytes. Throws FileError.
std::string file_checksum(const std::string& path);

}  // namespace tern::lm
