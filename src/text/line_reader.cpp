#include "text/line_reader.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <new>
#include <optional>
#include <string_view>
#include <utility>

#include "text/data_error.h"
#include "text/input_file.h"
#include "text/unicode.h"

namespace tern::text {

// The bytes of a file, decompressed if it begins with the magic bytes of gzip. zlib's gz* functions would read a file with a damaged
// header as plain text, and would ignore garbage after the last member.
class LineReader::Bytes {
 public:
  Bytes(int descriptor, const std::string& name) : name_(name), file_(descriptor, name) {}
  explicit Bytes(const std::filesystem::path& file) : name_(file.string()), file_(file) {
    fill();
    gzip_ = in_.size() >= 2 && in_[0] == '\x1f' && in_[1] == '\x8b';
    if (file.extension() == ".gz" && !gzip_) {
      throw DataError(fmt::format("{}: expected gzip data but got {}", name_, in_.empty() ? "an empty file" : "none"));
    }
    if (in_.starts_with("PK\x03\x04"))
      throw DataError(fmt::format("{}: expected text or gzip data but got {}: unpack it", name_, foreign_kind(in_)));
    if (gzip_) start_member();
  }
  ~Bytes() {
    if (started_) inflateEnd(&zlib_);
  }

  // True if next() would not wait for the file.
  bool is_ready() const noexcept { return !in_.empty() || file_.is_ready(); }
  // Compressed bytes that have been decoded; none for plain text.
  std::optional<std::uint64_t> compressed() const noexcept { return gzip_ ? std::optional(read_ - in_.size()) : std::nullopt; }

  // The next run of bytes, valid until the next call; empty at the end of the file.
  std::string_view next() {
    if (!gzip_) {
      if (in_.empty()) fill();
      return std::exchange(in_, {});
    }
    while (true) {
      if (in_.empty()) fill();
      if (!started_ && !next_member()) return {};
      zlib_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(in_.data()));
      zlib_.avail_in = static_cast<uInt>(in_.size());
      zlib_.next_out = reinterpret_cast<Bytef*>(out_.data());
      zlib_.avail_out = static_cast<uInt>(out_.size());
      const int code = inflate(&zlib_, Z_NO_FLUSH);
      if (code == Z_BUF_ERROR && in_.empty()) {
        throw DataError(fmt::format("{}: the gzip data is truncated", name_));
      }
      if (code != Z_OK && code != Z_STREAM_END && code != Z_BUF_ERROR) {
        throw DataError(fmt::format("{}: the gzip data is corrupt: {}", name_,
                                    zlib_.msg             ? zlib_.msg
                                    : code == Z_NEED_DICT ? "needs a dictionary"
                                                          : "inflate failed"));
      }
      in_.remove_prefix(in_.size() - zlib_.avail_in);
      if (code == Z_STREAM_END) {
        inflateEnd(&zlib_);
        started_ = false;
      }
      if (const std::size_t made = out_.size() - zlib_.avail_out) return {out_.data(), made};
    }
  }

 private:
  void fill() {
    const std::size_t n = file_.read(file_buffer_.data(), file_buffer_.size());
    read_ += n;
    in_ = {file_buffer_.data(), n};
  }

  void start_member() {
    zlib_ = {};
    if (inflateInit2(&zlib_, 15 + 16) != Z_OK) throw std::bad_alloc();
    started_ = true;
  }

  // A member may be followed by another one, or by zeros as padding.
  bool next_member() {
    while (!in_.empty()) {
      const std::size_t zeros = in_.find_first_not_of('\0');
      in_.remove_prefix(std::min(zeros, in_.size()));
      if (!in_.empty()) {
        if (in_[0] != '\x1f') throw DataError(fmt::format("{}: the gzip data is followed by something else", name_));
        start_member();
        return true;
      }
      fill();
    }
    return false;
  }

  std::string name_;
  InputFile file_;
  std::uint64_t read_ = 0;
  std::array<char, 1 << 16> file_buffer_, out_;
  std::string_view in_;  // bytes of the file that have been read and not decoded
  bool gzip_ = false, started_ = false;
  z_stream zlib_{};
};

LineReader::LineReader(const std::filesystem::path& file, const ReadOptions& options)
    : name_(file.string()), options_(options), bytes_(std::make_unique<Bytes>(file)) {}

LineReader::LineReader(int descriptor, std::string name, const ReadOptions& options)
    : name_(std::move(name)), options_(options), bytes_(std::make_unique<Bytes>(descriptor, name_)) {}

LineReader::~LineReader() = default;

bool LineReader::is_ready() const noexcept { return text_.find('\n') != std::string_view::npos || bytes_->is_ready(); }

bool LineReader::next(std::string& line, CorpusReport& report) {
  line.clear();
  bool begun = false;
  while (true) {
    if (text_.empty()) {
      text_ = bytes_->next();
      total_ += text_.size();
      if (total_ > options_.max_file_bytes) {
        throw DataError(fmt::format("{}:{}: expected at most {} bytes of text (max_file_bytes) but got more", name_, line_number_ + 1,
                                    options_.max_file_bytes));
      }
      check_ratio();
    }
    if (text_.empty() && !begun) return false;
    if (!begun) {
      begun = true;
      if (++line_number_ > options_.max_lines) {
        throw DataError(fmt::format("{}:{}: expected at most {} lines (max_lines) but got more", name_, line_number_, options_.max_lines));
      }
    }
    const std::size_t end = text_.find('\n');
    const bool ended = end != std::string_view::npos;
    const std::string_view part = text_.substr(0, end);
    // The line may still hold a byte order mark (3 bytes) and the CR of its end, which do not count: check() is exact.
    const std::size_t size = line.size() + part.size();
    if (size > 4 && size - 4 > options_.max_line_bytes) too_long();
    line.append(part);
    const bool last = text_.empty();
    text_.remove_prefix(part.size() + ended);
    if (ended || last) {
      check(line, ended, report);
      return true;
    }
  }
}

void LineReader::check_ratio() const {
  constexpr std::uint64_t free = std::uint64_t{16} << 20;
  const auto compressed = bytes_->compressed();
  if (!compressed || total_ + 32 * line_number_ <= free + options_.max_gzip_ratio * *compressed) return;
  throw DataError(
      fmt::format("{}:{}: expected gzip data of at most {} times its size (max_gzip_ratio) but got more; unpack it if it is text", name_,
                  line_number_ + 1, options_.max_gzip_ratio));
}

void LineReader::too_long() const {
  throw DataError(fmt::format("{}:{}: expected a line of at most {} bytes (max_line_bytes) but got a longer one", name_, line_number_,
                              options_.max_line_bytes));
}

void LineReader::check(std::string& line, bool ended, CorpusReport& report) {
  std::size_t mark = 0;
  if (line_number_ == 1 && line.starts_with("\xEF\xBB\xBF")) {
    mark = 3;
    report.byte_order_marks.note(name_, 1);
    line.erase(0, mark);
  }
  if (ended && line.ends_with('\r')) {
    line.pop_back();
    report.crlf.note(name_, line_number_);
  }
  if (line.size() > options_.max_line_bytes) too_long();
  if (const std::size_t nul = line.find('\0'); nul != std::string::npos) {
    throw DataError(fmt::format("{}:{}: expected text but got a NUL at byte {}", name_, line_number_, nul + mark + 1));
  }
  if (const std::size_t bad = find_invalid_utf8(line); bad != std::string::npos) {
    throw DataError(fmt::format("{}:{}: expected UTF-8 but got byte 0x{:02X} at byte {}", name_, line_number_,
                                static_cast<unsigned char>(line[bad]), bad + mark + 1));
  }
  ++report.lines;
  report.bytes += line.size();
  if (report.memory() > options_.max_memory_bytes) {
    throw DataError(fmt::format("{}:{}: expected lines that fit in the {} bytes of memory left for them (max_memory_bytes) but got more",
                                name_, line_number_, options_.max_memory_bytes));
  }
  if (is_blank(line)) report.empty.note(name_, line_number_);
}

}  // namespace tern::text
