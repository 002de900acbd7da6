#pragma once
#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "tensor/tensor.h"

namespace tern::data {

/// Layouts of token files.
enum class TokenFormat {
  automatic,  ///< llm_c where the file begins with one of its magic numbers, else raw_u16
  raw_u16,    ///< nanoGPT's: tokens of 16 bits, and nothing else
  llm_c,      ///< llm.c's: a header of 256 i32, which are magic, version, count and zeros, and then the tokens
};

/// A memory-mapped file of tokens: pages are read on demand, and shared among programs. Numbers are little-endian. llm.c
/// has two versions (github.com/karpathy/llm.c, dev/data/data_common.py): magic 20240520, version 1, tokens of u16 as GPT-2's, and magic
/// 20240801, version 7, tokens of u32 as Llama 3's. A handle whose copies share the mapping; any thread may read.
/// The file must not be truncated while it is open: a read past its end ends the program (SIGBUS), as with every mapping.
class TokenFile {
 public:
  /// Throws io::FileError for a file that cannot be opened or mapped, that is cut or longer than its header says, or is of another format.
  explicit TokenFile(const std::filesystem::path& path, TokenFormat format = TokenFormat::automatic);

  std::int64_t size() const { return size_; }       ///< in tokens
  int token_bytes() const { return token_bytes_; }  ///< 2 or 4
  const std::filesystem::path& path() const;        ///< as it was opened
  /// Throws Error for an index out of range.
  std::int64_t operator[](std::int64_t index) const;
  /// Tokens [first, first + to.size()), widened to the i64 that embedding and cross_entropy take: a batch is small, and a copy of it is
  /// made anyway. Throws Error for a range that is not in the file.
  void read(std::int64_t first, std::span<std::int64_t> to) const;

 private:
  struct Mapping;
  std::shared_ptr<const Mapping> mapping_;
  const std::byte* tokens_ = nullptr;
  std::int64_t size_ = 0;
  int token_bytes_ = 2;
};

/// Writes tokens in llm.c's format, of u16 or u32, so that the file is there whole or not at all. Throws Error for a token that does not
/// fit, and io::FileError.
void save_tokens(const std::filesystem::path& path, std::span<const std::int64_t> tokens, int token_bytes = 2);

/// Windows of T + 1 tokens as examples for a Loader: the input is the first T of them, the target the last T, each (T) of i64, and (B, T)
/// in a batch. Window i begins at token i * stride.
class TokenWindows {
 public:
  /// `stride` 0 stands for `length`, windows side by side. With `vocab` a token that is not below it throws io::FileError when it is read.
  /// Throws Error for a length below 1 and a stride below 0.
  TokenWindows(TokenFile file, std::int64_t length, std::int64_t stride = 0, std::int64_t vocab = 0);

  /// As many windows as are whole.
  std::int64_t size() const;
  /// Input and target of a window, (T) of i64 each. Throws Error for an index out of range.
  Tensors operator[](std::int64_t index) const;
  /// Inputs and targets of several windows, (B, T) of i64 each.
  Tensors batch(std::span<const std::int64_t> indices) const;

 private:
  void read(std::int64_t index, std::int64_t* input, std::int64_t* target) const;

  TokenFile file_;
  std::int64_t length_, stride_, vocab_;
};

/// Sequences put into rows of one length. Attention within a sequence is where segments are equal and not 0.
struct PackedRows {
  Tensor ids;        ///< (R, T), i64; `padding` behind the last sequence of a row
  Tensor segments;   ///< (R, T), i64: the number of the sequence in its row, from 1; 0 for padding
  Tensor positions;  ///< (R, T), i64: the place in the sequence, from 0; 0 for padding
};
/// Best fit decreasing: the longest sequence first, into the row that it fills best; of equal ones the first. No sequence is cut; empty
/// ones are left out. Throws Error for a length below 1 and a sequence that is longer.
PackedRows pack(std::span<const std::vector<std::int64_t>> sequences, std::int64_t length, std::int64_t padding = 0);

}  // namespace tern::data
