#include "text/byte_reader.h"

#include <fmt/format.h>
#ifdef TERN_ZSTD
#include <zstd.h>
#endif

#include <algorithm>
#include <new>
#include <utility>

#include "text/data_error.h"

namespace tern::text {
namespace {

constexpr std::size_t buffer_bytes = std::size_t{1} << 16;

}  // namespace

#ifdef TERN_ZSTD
struct ByteReader::Zstd {
  Zstd() : stream(ZSTD_createDStream()) {
    if (!stream) throw std::bad_alloc();
    ZSTD_DCtx_setParameter(stream, ZSTD_d_windowLogMax, 27);
  }
  ~Zstd() { ZSTD_freeDStream(stream); }
  Zstd(const Zstd&) = delete;
  Zstd& operator=(const Zstd&) = delete;

  ZSTD_DStream* stream;
  bool is_at_end = true;  // of a frame
};

std::string_view ByteReader::next_of_zstd() {
  while (true) {
    ZSTD_inBuffer in{in_.data(), in_.size(), 0};
    ZSTD_outBuffer out{out_.data(), out_.size(), 0};
    if (in.size > 0 || !zstd_->is_at_end) {
      const std::size_t code = ZSTD_decompressStream(zstd_->stream, &out, &in);
      if (ZSTD_isError(code)) throw DataError(fmt::format("{}: the Zstandard data is corrupt: {}", name_, ZSTD_getErrorName(code)));
      zstd_->is_at_end = code == 0;
      in_.remove_prefix(in.pos);
    }
    if (out.pos > 0) return {out_.data(), out.pos};
    if (!in_.empty()) continue;
    fill();
    if (!in_.empty()) continue;
    if (!zstd_->is_at_end) throw DataError(fmt::format("{}: the Zstandard data is truncated", name_));
    return {};
  }
}
#else
struct ByteReader::Zstd {};

std::string_view ByteReader::next_of_zstd() {
  throw DataError(fmt::format("{}: is Zstandard data, which needs a build with libzstd-dev: unpack it", name_));
}
#endif

ByteReader::ByteReader(int descriptor, const std::string& name) : name_(name), file_(descriptor, name), file_buffer_(buffer_bytes) {}

ByteReader::ByteReader(const std::filesystem::path& file) : name_(file.string()), file_(file), file_buffer_(buffer_bytes) {
  fill();
  is_gzip_ = in_.starts_with("\x1f\x8b");
  if (in_.starts_with("\x28\xB5\x2F\xFD")) zstd_ = std::make_unique<Zstd>();
  const auto require = [&](const char* extension, const char* kind, bool holds) {
    if (file.extension() == extension && !holds)
      throw DataError(fmt::format("{}: expected {} data but got {}", name_, kind, in_.empty() ? "an empty file" : "none"));
  };
  require(".gz", "gzip", is_gzip_);
  require(".zst", "Zstandard", zstd_ != nullptr);
  if (in_.starts_with("PK\x03\x04"))
    throw DataError(fmt::format("{}: expected text or gzip data but got {}: unpack it", name_, foreign_kind(in_)));
  if (is_gzip_) start_member();
  if (!is_plain()) out_.resize(buffer_bytes);
}

ByteReader::~ByteReader() {
  if (is_in_member_) inflateEnd(&zlib_);
}

std::string_view ByteReader::next() {
  if (is_gzip_) return next_of_gzip();
  if (zstd_) return next_of_zstd();
  if (in_.empty()) fill();
  return std::exchange(in_, {});
}

std::string_view ByteReader::next_of_gzip() {
  while (true) {
    if (in_.empty()) fill();
    if (!is_in_member_ && !next_member()) return {};
    zlib_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(in_.data()));
    zlib_.avail_in = static_cast<uInt>(in_.size());
    zlib_.next_out = reinterpret_cast<Bytef*>(out_.data());
    zlib_.avail_out = static_cast<uInt>(out_.size());
    const int code = inflate(&zlib_, Z_NO_FLUSH);
    if (code == Z_BUF_ERROR && in_.empty()) throw DataError(fmt::format("{}: the gzip data is truncated", name_));
    if (code != Z_OK && code != Z_STREAM_END && code != Z_BUF_ERROR) {
      throw DataError(fmt::format("{}: the gzip data is corrupt: {}", name_,
                                  zlib_.msg             ? zlib_.msg
                                  : code == Z_NEED_DICT ? "needs a dictionary"
                                                        : "inflate failed"));
    }
    in_.remove_prefix(in_.size() - zlib_.avail_in);
    if (code == Z_STREAM_END) {
      inflateEnd(&zlib_);
      is_in_member_ = false;
    }
    if (const std::size_t made = out_.size() - zlib_.avail_out) return {out_.data(), made};
  }
}

void ByteReader::fill() {
  const std::size_t n = file_.read(file_buffer_.data(), file_buffer_.size());
  read_ += n;
  in_ = {file_buffer_.data(), n};
}

void ByteReader::start_member() {
  zlib_ = {};
  if (inflateInit2(&zlib_, 15 + 16) != Z_OK) throw std::bad_alloc();
  is_in_member_ = true;
}

// A member may be followed by another one, or by zeros as padding.
bool ByteReader::next_member() {
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

}  // namespace tern::text
