#include "io/event_file.h"

#include <fmt/format.h>

#include <bit>
#include <cerrno>
#include <chrono>
#include <concepts>
#include <system_error>

#include "io/files.h"

namespace tern::io {

namespace fs = std::filesystem;

namespace {

/// More than any training writes.
constexpr std::size_t max_file_bytes = std::size_t(1) << 30;
constexpr std::size_t header_bytes = 12, footer_bytes = 4;

constexpr std::string_view file_version = "brain.Event:2";

/// The wire format of protocol buffers: a field as bytes. See https://protobuf.dev/programming-guides/encoding.
namespace wire {

enum Type : std::uint8_t { varint = 0, fixed64 = 1, delimited = 2, fixed32 = 5 };

template <std::unsigned_integral T>
std::string little_endian(T value) {
  std::string bytes;
  for (std::size_t i = 0; i < sizeof value; ++i) bytes += static_cast<char>(value >> (8 * i));
  return bytes;
}

/// A varint: seven bits a byte, the lowest first; the top bit says that more follow.
std::string base128(std::uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}

std::string key(unsigned field, Type type) { return base128(field << 3 | type); }
std::string integer(unsigned field, std::uint64_t value) { return key(field, varint) + base128(value); }
std::string real64(unsigned field, double value) { return key(field, fixed64) + little_endian(std::bit_cast<std::uint64_t>(value)); }
std::string real32(unsigned field, float value) { return key(field, fixed32) + little_endian(std::bit_cast<std::uint32_t>(value)); }
/// A length-delimited field: a string, or the fields of a message.
std::string bytes(unsigned field, std::string_view value) { return key(field, delimited).append(base128(value.size())).append(value); }

}  // namespace wire

/// TFRecord rotates and offsets a CRC, since the CRC of data that contain their own CRC would be of little use.
std::uint32_t masked_crc(std::string_view data) { return std::rotr(crc32c(data), 15) + 0xA282EAD8U; }

std::string record(std::string_view payload) {
  const std::string length = wire::little_endian(std::uint64_t{payload.size()});
  return length + wire::little_endian(masked_crc(length)).append(payload) + wire::little_endian(masked_crc(payload));
}

template <std::unsigned_integral T>
T read_little_endian(std::string_view bytes) {
  T value = 0;
  for (std::size_t i = 0; i < sizeof value; ++i) value |= static_cast<T>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  return value;
}

/// The number of bytes of the whole records at the beginning of a file; `payload` becomes that of the first record.
std::size_t whole_records(std::string_view file, std::string_view& payload) {
  std::size_t at = 0;
  while (file.size() - at >= header_bytes + footer_bytes) {
    const std::string_view rest = file.substr(at);
    const auto length = read_little_endian<std::uint64_t>(rest);
    if (read_little_endian<std::uint32_t>(rest.substr(8)) != masked_crc(rest.substr(0, 8))) break;
    if (length > rest.size() - header_bytes - footer_bytes) break;
    const std::string_view data = rest.substr(header_bytes, length);
    if (read_little_endian<std::uint32_t>(rest.substr(header_bytes + length)) != masked_crc(data)) break;
    if (at == 0) payload = data;
    at += header_bytes + length + footer_bytes;
  }
  return at;
}

std::string first_record(double now) { return record(wire::real64(1, now) + wire::bytes(3, file_version)); }

/// Replaces a file by one of its whole records, without a torn one at its end. Returns the path.
const fs::path& keep_whole_records(const fs::path& path) {
  std::error_code error;
  if (!fs::exists(path, error)) return path;
  const std::string file = read_file(path, max_file_bytes);
  std::string_view first;
  const std::size_t whole = whole_records(file, first);
  // A torn first record of an event file is known by its header, which has no time in it. Any other file is left alone.
  const std::string begin = first_record(0);
  const bool is_begun = file.size() < begin.size() && begin.substr(0, header_bytes).starts_with(file.substr(0, header_bytes));
  if (whole == 0 ? !is_begun : first.find(file_version) == std::string_view::npos)
    throw FileError(fmt::format("{}: holds no events of version {}: remove it, or name another directory", path.string(), file_version));
  // A new file, as the log of a resumed run is: another name of the old one, such as a hard link of a copied run, keeps what it has.
  write_file_atomically(path, std::string_view(file).substr(0, whole));
  return path;
}

double system_seconds() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

}  // namespace

EventFile::EventFile(const fs::path& path, Clock clock)
    : file_(keep_whole_records(path)), clock_(clock ? std::move(clock) : Clock(system_seconds)), flushed_(clock_()) {
  std::error_code error;
  if (fs::file_size(path, error) == 0 && !error) {
    goes_on_ = false;
    buffer_ = first_record(clock_());
    flush();
  }
}

EventFile::~EventFile() {
  try {
    flush();
  } catch (const FileError&) {  // a destructor cannot report it
  }
}

void EventFile::begin_session(std::int64_t step) {
  constexpr std::uint64_t start = 1;
  add(wire::integer(2, static_cast<std::uint64_t>(step)) + wire::bytes(7, wire::integer(1, start)));
}

void EventFile::scalars(std::int64_t step, const std::vector<std::pair<std::string, double>>& values) {
  std::string summary;
  for (const auto& [tag, value] : values) summary += wire::bytes(1, wire::bytes(1, tag) + wire::real32(2, static_cast<float>(value)));
  add(wire::integer(2, static_cast<std::uint64_t>(step)) + wire::bytes(5, summary));
}

void EventFile::text(std::int64_t step, std::string_view tag, std::string_view markdown) {
  constexpr std::uint64_t string_type = 7, tensor_class = 2;
  const std::string shape = wire::bytes(2, wire::integer(1, 1));  // one dimension of size 1
  const std::string tensor = wire::integer(1, string_type) + wire::bytes(2, shape) + wire::bytes(8, markdown);
  const std::string metadata = wire::bytes(1, wire::bytes(1, "text")) + wire::integer(4, tensor_class);
  const std::string value = wire::bytes(1, tag) + wire::bytes(8, tensor) + wire::bytes(9, metadata);
  add(wire::integer(2, static_cast<std::uint64_t>(step)) + wire::bytes(5, wire::bytes(1, value)));
}

void EventFile::add(std::string_view fields) {
  constexpr std::size_t max_buffer = std::size_t(64) << 10;
  constexpr double max_seconds = 10;
  const double now = clock_();
  buffer_ += record(wire::real64(1, now).append(fields));
  if (buffer_.size() >= max_buffer || now - flushed_ >= max_seconds) flush();
}

void EventFile::flush() {
  flushed_ = clock_();
  // AppendFile keeps records that it could not write.
  const std::string records = std::exchange(buffer_, {});
  file_.write(records);
}

}  // namespace tern::io
