#include "text/corpus.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>
#include <set>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <utility>

#include "text/byte_reader.h"
#include "text/data_error.h"
#include "text/unicode.h"

namespace tern::text {

LineReader::LineReader(const std::string& file, const ReadOptions& options)
    : name_(file), options_(options), bytes_(std::make_unique<ByteReader>(file)) {}

LineReader::LineReader(int descriptor, std::string name, const ReadOptions& options)
    : name_(std::move(name)), options_(options), bytes_(std::make_unique<ByteReader>(descriptor, name_)) {}

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
      fmt::format("{}:{}: expected compressed data of at most {} times its size (max_gzip_ratio) but got more; unpack it if it is text",
                  name_, line_number_ + 1, options_.max_gzip_ratio));
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

namespace {

namespace fs = std::filesystem;

// Names of the regular files in `dir`, sorted.
std::vector<std::string> file_names(const std::string& dir) {
  std::error_code error;
  std::vector<std::string> names;
  for (fs::directory_iterator it(dir, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    if (!it->is_directory(ignored)) names.push_back(it->path().filename().string());
  }
  if (error) throw DataError(fmt::format("{}: could not be read: {}", dir, error.message()));
  std::sort(names.begin(), names.end());
  return names;
}

// "train" for "train.de" and "train.de.gz" when `language` is "de"; empty for the file of another language.
std::string split_of(std::string_view file, std::string_view language) {
  if (file.ends_with(".gz")) file.remove_suffix(3);
  if (file.size() <= language.size() + 1 || !file.ends_with(language)) return {};
  file.remove_suffix(language.size());
  return file.back() == '.' ? std::string(file.substr(0, file.size() - 1)) : std::string();
}

std::set<std::string> splits_of(const std::vector<std::string>& files, std::string_view language) {
  std::set<std::string> splits;
  for (const std::string& file : files) {
    if (std::string split = split_of(file, language); !split.empty()) splits.insert(std::move(split));
  }
  return splits;
}

// The splits that have a table, by name, with its file: "train.en-de.tsv" for the split "train" of these two languages. The file's name has
// the languages in the order of its columns.
std::map<std::string, std::string> tables_of(const std::vector<std::string>& files, std::string_view src, std::string_view tgt) {
  std::map<std::string, std::string> tables;
  for (const std::string& file : files) {
    for (const std::string& columns : {fmt::format("{}-{}.tsv", src, tgt), fmt::format("{}-{}.tsv", tgt, src)}) {
      std::string split = split_of(file, columns);
      if (split.empty()) continue;
      const auto [found, is_new] = tables.emplace(std::move(split), file);
      if (!is_new) throw DataError(fmt::format("expected either {} or {} but got both", found->second, file));
    }
  }
  return tables;
}

// The name in the directory of the split that the user named, e.g. "val" for "valid".
std::string resolve(const std::string& dir, const std::vector<std::string>& files, std::string_view split, std::string_view src,
                    std::string_view tgt) {
  std::set<std::string> names = splits_of(files, src);
  names.merge(splits_of(files, tgt));
  for (const auto& [name, file] : tables_of(files, src, tgt)) names.insert(name);
  std::vector<std::string> found;
  for (const std::string& name : names) {
    const bool is_alias = (split == "valid" && name == "val") || (split == "test" && name.starts_with("test"));
    if (name == split || is_alias) found.push_back(name);
  }
  // An exact match takes precedence: "test" over "test_2016".
  if (split == "test" && names.contains("test")) found = {"test"};
  if (found.size() > 1) {
    throw DataError(fmt::format("{}: expected one split for '{}' but got {}", dir, split, fmt::join(found, ", ")));
  }
  return found.empty() ? std::string(split) : found[0];
}

// Path of one side of a split.
std::string side(const std::string& dir, const std::vector<std::string>& files, const std::string& split, std::string_view language) {
  const std::string plain = fmt::format("{}.{}", split, language), gzip = plain + ".gz";
  const auto has = [&](const std::string& name) { return std::binary_search(files.begin(), files.end(), name); };
  if (has(plain) && has(gzip)) {
    throw DataError(fmt::format("{}: expected either {} or {} but got both", dir, plain, gzip));
  }
  if (!has(plain) && !has(gzip)) {
    constexpr std::size_t max_names = 12;
    const std::vector<std::string> names(files.begin(), files.begin() + static_cast<std::ptrdiff_t>(std::min(max_names, files.size())));
    throw DataError(fmt::format("{}: expected {} or {} but got {}{}", dir, plain, gzip,
                                files.empty() ? "no file" : fmt::format("{}", fmt::join(names, ", ")),
                                files.size() > max_names ? ", ..." : ""));
  }
  return fs::path(dir) / (has(plain) ? plain : gzip);
}

std::string described(const Occurrence& lines, const char* name) {
  if (lines.count == 0) return {};
  return fmt::format("; {} {} (first {}:{})", lines.count, name, printable(lines.file, 200), lines.line);
}

std::string size_text(std::uint64_t bytes) {
  if (bytes < 1000) return fmt::format("{} B", bytes);
  if (bytes < 1'000'000) return fmt::format("{:.1f} kB", static_cast<double>(bytes) / 1e3);
  if (bytes < 1'000'000'000) return fmt::format("{:.1f} MB", static_cast<double>(bytes) / 1e6);
  return fmt::format("{:.2f} GB", static_cast<double>(bytes) / 1e9);
}

// Removes the pairs i for which is_dropped(i), and returns how many they are.
template <class IsDropped>
std::size_t drop_pairs(ParallelCorpus& corpus, IsDropped&& is_dropped) {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < corpus.size(); ++i) {
    if (is_dropped(i)) continue;
    if (kept != i) {
      corpus.src[kept] = std::move(corpus.src[i]);
      corpus.tgt[kept] = std::move(corpus.tgt[i]);
    }
    ++kept;
  }
  const std::size_t dropped = corpus.size() - kept;
  corpus.src.resize(kept);
  corpus.tgt.resize(kept);
  return dropped;
}

}  // namespace

void Occurrence::note(const std::string& in_file, std::uint64_t at_line) {
  if (count++ > 0) return;
  file = in_file;
  line = at_line;
}

void CorpusReport::merge(const CorpusReport& other) {
  files += other.files;
  lines += other.lines;
  bytes += other.bytes;
  const auto join = [](Occurrence& mine, const Occurrence& theirs) {
    const std::uint64_t sum = mine.count + theirs.count;
    if (mine.count == 0) mine = theirs;
    mine.count = sum;
  };
  join(crlf, other.crlf);
  join(byte_order_marks, other.byte_order_marks);
  join(empty, other.empty);
  join(skipped_pairs, other.skipped_pairs);
}

std::string CorpusReport::summary() const {
  return fmt::format("{} file{}, {} line{}, {}", files, files == 1 ? "" : "s", lines, lines == 1 ? "" : "s", size_text(bytes)) +
         described(crlf, "CRLF") + described(byte_order_marks, "byte order mark") + described(empty, "empty") +
         described(skipped_pairs, "pairs skipped");
}

ReadOptions ReadOptions::beside(const CorpusReport& held) const noexcept {
  ReadOptions rest = *this;
  rest.max_memory_bytes -= std::min(rest.max_memory_bytes, held.memory());
  return rest;
}

// Calls f(line) for each line of a file.
template <class F>
static void for_each_line(const std::string& file, const ReadOptions& options, CorpusReport* report, F&& f) {
  CorpusReport found;
  LineReader reader(file, report ? options.beside(*report) : options);
  for (std::string line; reader.next(line, found);) {
    constexpr std::uint64_t free = std::uint64_t{64} << 20;
    if (found.memory() > free && found.memory() - free > options.max_memory_ratio * (found.bytes + found.lines))
      throw DataError(
          fmt::format("{}:{}: expected lines that take at most {} times the memory of their text (max_memory_ratio) but got more; "
                      "leave empty lines out",
                      file, found.lines, options.max_memory_ratio));
    f(line);
  }
  found.files = 1;
  if (report) report->merge(found);
}

std::vector<std::string> read_lines(const std::string& file, const ReadOptions& options, CorpusReport* report) {
  std::vector<std::string> lines;
  for_each_line(file, options, report, [&](const std::string& line) { lines.push_back(line); });
  return lines;
}

// Reads the first two columns of a table; `is_swapped` if the target's is the first. Further columns, such as the attribution of
// Tatoeba's sentences, are left out.
static void read_table(ParallelCorpus& corpus, bool is_swapped, const ReadOptions& options) {
  const std::string& file = corpus.src_file;
  for_each_line(file, options, &corpus.report, [&](const std::string& line) {
    const std::size_t end = std::min(line.find('\t'), line.size()), next = std::min(end + 1, line.size());
    if (end == line.size() && !is_blank(line))
      throw DataError(fmt::format("{}:{}: expected two columns with a tab between them but got one", file, corpus.src.size() + 1));
    std::string first = line.substr(0, end), second = line.substr(next, line.find('\t', next) - next);
    if (is_swapped) std::swap(first, second);
    corpus.src.push_back(std::move(first));
    corpus.tgt.push_back(std::move(second));
  });
}

ParallelCorpus read_pairs(const std::string& dir, std::string_view split, std::string_view src, std::string_view tgt,
                          const ReadOptions& options) {
  if (src.empty() || tgt.empty() || src == tgt) {
    throw std::invalid_argument(fmt::format("[read_pairs] expected two different languages but got '{}' and '{}'", src, tgt));
  }
  const std::vector<std::string> files = file_names(dir);
  const std::string name = resolve(dir, files, split, src, tgt);
  ParallelCorpus corpus;
  const std::map<std::string, std::string> tables = tables_of(files, src, tgt);
  if (const auto table = tables.find(name); table != tables.end()) {
    for (const auto language : {src, tgt}) {
      if (splits_of(files, language).contains(name))
        throw DataError(fmt::format("{}: expected either {} or {}.{} but got both", dir, table->second, name, language));
    }
    corpus.src_file = corpus.tgt_file = fs::path(dir) / table->second;
    read_table(corpus, table->second.find(fmt::format(".{}-{}.tsv", src, tgt)) == std::string::npos, options);
  } else {
    corpus.src_file = side(dir, files, name, src);
    corpus.tgt_file = side(dir, files, name, tgt);
    corpus.src = read_lines(corpus.src_file, options, &corpus.report);
    corpus.tgt = read_lines(corpus.tgt_file, options, &corpus.report);
  }
  for (const auto* one : {&corpus.src, &corpus.tgt}) {
    if (!one->empty()) continue;
    throw DataError(
        fmt::format("{}: expected at least one line but got an empty file", one == &corpus.src ? corpus.src_file : corpus.tgt_file));
  }
  if (corpus.src.size() != corpus.tgt.size()) {
    throw DataError(fmt::format("{}: expected as many lines as {} has but got {} against {}", corpus.src_file, corpus.tgt_file,
                                corpus.src.size(), corpus.tgt.size()));
  }
  if (split != "train") return corpus;
  drop_pairs(corpus, [&](std::size_t i) {
    const bool is_src_blank = is_blank(corpus.src[i]);
    if (!is_src_blank && !is_blank(corpus.tgt[i])) return false;
    corpus.report.skipped_pairs.note(is_src_blank ? corpus.src_file : corpus.tgt_file, i + 1);
    return true;
  });
  if (corpus.size() == 0) {
    throw DataError(fmt::format("{}: expected at least one pair without an empty side but got none", corpus.src_file));
  }
  return corpus;
}

std::vector<std::string> list_splits(const std::string& dir, std::string_view src, std::string_view tgt) {
  const std::vector<std::string> files = file_names(dir);
  const std::set<std::string> one = splits_of(files, src), other = splits_of(files, tgt);
  std::set<std::string> both;
  std::set_intersection(one.begin(), one.end(), other.begin(), other.end(), std::inserter(both, both.end()));
  for (const auto& [name, file] : tables_of(files, src, tgt)) both.insert(name);
  return {both.begin(), both.end()};
}

std::size_t count_words(std::string_view line) noexcept {
  std::size_t words = 0;
  for_each_word(line, [&](std::string_view) { ++words; });
  return words;
}

std::size_t filter_by_words(ParallelCorpus& corpus, std::size_t limit) {
  return drop_pairs(corpus, [&](std::size_t i) { return count_words(corpus.src[i]) + count_words(corpus.tgt[i]) >= limit; });
}

}  // namespace tern::text
