#pragma once
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tensor/tensor.h"

namespace tern::data {

/// Layouts of token files.
enum class TokenFormat {
  automatic,  ///< llm_c if the file begins with one of its magic numbers, else raw_u16
  raw_u16,    ///< nanoGPT's format: u16 tokens without a header
  llm_c,      ///< llm.c's format: a header of 256 i32 (magic, version, count, zeros), then the tokens
};

/// A memory-mapped file of tokens, little-endian. llm.c's format has two versions (github.com/karpathy/llm.c, dev/data/data_common.py):
/// magic 20240520, version 1, with u16 tokens (GPT-2), and magic 20240801, version 7, with u32 tokens (Llama 3). A handle: copies share the
/// mapping, and any thread may read. The file must not be truncated while it is open, as a read past its end ends the program (SIGBUS).
class TokenFile {
 public:
  /// Maps a file. Throws io::FileError if it cannot be opened or mapped, is of another format, or has another size than its header says.
  explicit TokenFile(const std::string& path, TokenFormat format = TokenFormat::automatic);

  std::int64_t size() const { return size_; }       ///< number of tokens
  int token_bytes() const { return token_bytes_; }  ///< bytes of a token, 2 or 4
  const std::string& path() const;                  ///< path of the file
  /// The token at an index. Throws Error for an index out of range.
  std::int64_t operator[](std::int64_t index) const;
  /// Reads tokens [first, first + to.size()) as i64, the dtype of embedding and cross_entropy. Throws Error for a range outside the file.
  void read(std::int64_t first, std::span<std::int64_t> to) const;

 private:
  struct Mapping;
  std::shared_ptr<const Mapping> mapping_;
  const std::byte* tokens_ = nullptr;
  std::int64_t size_ = 0;
  int token_bytes_ = 2;
};

/// Token files that are read as one list, such as the shards of a data set. Copies share the mappings.
class TokenList {
 public:
  TokenList() = default;
  /// A list of files in their order.
  explicit TokenList(std::vector<TokenFile> files);

  std::int64_t size() const { return ends_.empty() ? 0 : ends_.back(); }  ///< number of tokens
  const std::vector<TokenFile>& files() const { return files_; }          ///< in their order
  /// Reads tokens [first, first + to.size()). Throws Error for a range outside of the list.
  void read(std::int64_t first, std::span<std::int64_t> to) const;
  /// The file of a token, and its index there. Throws Error for an index outside of the list.
  std::pair<std::string, std::int64_t> place(std::int64_t token) const;

 private:
  std::size_t file_of(std::int64_t token) const;

  std::vector<TokenFile> files_;
  std::vector<std::int64_t> ends_;  ///< of each file, in tokens of the list
};

/// Writes tokens in llm.c's format with token_bytes 2 (u16) or 4 (u32). The file is replaced atomically. Throws Error for a token that does
/// not fit, and io::FileError.
void save_tokens(const std::string& path, std::span<const std::int64_t> tokens, int token_bytes = 2);

/// Writes the file of save_tokens() piece by piece, in constant memory.
class TokenWriter {
 public:
  /// Opens a temporary file beside `path`. Throws io::FileError, and Error for other token_bytes than 2 and 4.
  explicit TokenWriter(const std::string& path, int token_bytes = 2);
  ~TokenWriter();
  TokenWriter(TokenWriter&& other) noexcept;             ///< takes over the file
  TokenWriter& operator=(TokenWriter&& other) noexcept;  ///< drops its own, and takes over the other's

  /// @{
  /// Appends tokens. Throws Error for a token that does not fit and for more than 2^31 - 1 in all, the most that a header can say, and
  /// io::FileError, as a DiskError on a full disk.
  void write(std::span<const std::int64_t> tokens);
  void write(std::span<const std::int32_t> tokens);
  /// @}
  /// Tokens so far.
  std::int64_t size() const noexcept;
  /// Replaces the file at the path by what was written. Without it nothing is left behind. Throws io::FileError.
  void commit();

 private:
  struct State;
  template <class T>
  void append(std::span<const T> tokens);
  std::unique_ptr<State> state_;
};

/// A Dataset of windows of T + 1 tokens: the input is the first T tokens, the target the last T, each (T) of i64, and (B, T) in a batch.
/// Window i starts at token i * stride.
class TokenWindows {
 public:
  /// `length` is T. `stride` 0 is `length`: windows that do not overlap. With `vocab` > 0, reading a token >= vocab throws io::FileError.
  /// Throws Error for a length below 1 and a stride below 0.
  TokenWindows(TokenFile file, std::int64_t length, std::int64_t stride = 0, std::int64_t vocab = 0);
  /// Windows of several files: a window may begin in one and end in the next.
  TokenWindows(TokenList files, std::int64_t length, std::int64_t stride = 0, std::int64_t vocab = 0);
  /// Windows of tokens in memory. With `vocab` > 0, reading a token outside of [0, vocab) throws Error. Copies share the tokens.
  TokenWindows(std::vector<std::int64_t> tokens, std::int64_t length, std::int64_t stride = 0, std::int64_t vocab = 0);

  /// As many windows as are whole.
  std::int64_t size() const;
  /// Input and target of a window, (T) of i64 each. Throws Error for an index out of range.
  Tensors operator[](std::int64_t index) const;
  /// Inputs and targets of several windows, (B, T) of i64 each.
  Tensors batch(std::span<const std::int64_t> indices) const;

 private:
  TokenWindows(std::int64_t length, std::int64_t stride, std::int64_t vocab);
  std::int64_t tokens() const { return tokens_ ? static_cast<std::int64_t>(tokens_->size()) : files_.size(); }
  void read_tokens(std::int64_t first, std::span<std::int64_t> to) const;
  void read(std::int64_t index, std::int64_t* input, std::int64_t* target) const;

  TokenList files_;
  std::shared_ptr<const std::vector<std::int64_t>> tokens_;  ///< instead of files
  std::int64_t length_, stride_, vocab_;
};

/// Sequences packed into rows of one length. Attention within a sequence is between positions of equal segments that are not 0.
struct PackedRows {
  Tensor ids;        ///< (R, T), i64: tokens, and `padding` after the last sequence of a row
  Tensor segments;   ///< (R, T), i64: number of the sequence in its row, from 1; 0 for padding
  Tensor positions;  ///< (R, T), i64: position in the sequence, from 0; 0 for padding
};
/// Packs sequences into rows of `length` by best-fit decreasing: the longest sequence first, into the row with the least sufficient space,
/// the first of equals. No sequence is cut; empty ones are left out. Throws Error for a length below 1 and for a longer sequence.
PackedRows pack(std::span<const std::vector<std::int64_t>> sequences, std::int64_t length, std::int64_t padding = 0);

}  // namespace tern::data
