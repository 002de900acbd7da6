#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "data/token_file.h"
#include "text/bpe.h"

namespace tern::data {

/// A directory of tokens for language models: tokenizer.json, shards in llm.c's format (train-00000.bin, valid-00000.bin and more), and
/// data.json, the last, with "tern_data" (1), "vocab", "end_of_text", "train_tokens", "valid_tokens", "train_bytes", "valid_bytes", and the
/// checksums of "tokenizer" and "shards".
struct PreparedData {
  /// Throws io::FileError, one line, unless data.json is whole and the files have the tokens and the checksums that it says.
  static PreparedData open(const std::string& path);

  text::Tokenizer tokenizer;  ///< of tokenizer.json
  std::int64_t end_of_text;   ///< token after each document; -1: none
  TokenList train;            ///< tokens to train on
  TokenList valid;            ///< tokens to validate on
  std::int64_t train_bytes;   ///< of the text, for bits per byte
  std::int64_t valid_bytes;   ///< likewise
  std::string digest;         ///< checksum of all tokens
};

/// How far a preparation is.
struct PrepareProgress {
  bool trains_tokenizer = false;  ///< the text is not encoded yet
  std::uint64_t bytes = 0;        ///< of the files that have been read and encoded
  std::uint64_t all_bytes = 0;    ///< of all files
  std::int64_t tokens = 0;        ///< in the shards
};

/// Options of prepare(). A file is plain or compressed by gzip or Zstandard. It is one document, or several between separators, or has one
/// on each line: the string `field` of a JSON object (text::PieceReader).
struct PrepareOptions {
  std::vector<std::string> text;   ///< files to train on
  std::vector<std::string> valid;  ///< files to validate on; without them a part of `text`
  std::string out;                 ///< directory to write
  std::string tokenizer;           ///< a tokenizer.json; "": a new one is trained on a sample of the text
  std::int64_t vocab = 32768;      ///< tokens of a new tokenizer
  std::string field;               ///< "": files called *.jsonl and *.ndjson have JSON lines, with the text in "text"; else all have
  std::string separator;           ///< without a line break: plain files are documents with this between them; "": they are one each
  double valid_share = 0.01;       ///< share of the text's bytes to validate on, in parts at equal distances
  std::int64_t shard_tokens = 100'000'000;  ///< least tokens of a shard but the last
  int threads = 1;                          ///< that encode, beside this one
  /// Called for each piece of the text and each step of a tokenizer's training; what it throws ends the preparation, which a later call
  /// with the same options goes on with.
  std::function<void(const PrepareProgress&)> on_progress = {};
};

/// Makes the directory that PreparedData::open() reads, in bounded memory and in one pass over the text, two with a new tokenizer. Its
/// bytes are a function of the text and the options but `threads`. A preparation that was cut short in `out` goes on at the shard where it
/// stopped if its files, by name, size and time, and its options are the same; otherwise it starts over. Throws io::FileError, one line,
/// for a directory that holds something else, or a finished data set; for a file that cannot be read, is damaged, is no JSON (with its
/// line) or lacks the field; for text of which nothing is left to train or to validate on; and as an io::DiskError for a full disk.
void prepare(const PrepareOptions& options);

}  // namespace tern::data
