// prepare(): text of any size to shards of tokens, in one pass over the text and in bounded memory.
//
// Note [Pieces]
// The text is read in pieces (text/piece_reader.h), which threads encode and this one writes in order. All that decides a byte of the
// output is a function of the text and the options: pieces, their order, which of them go to validation, and the ends of shards, which are
// ends of pieces. progress.json says after each shard how many pieces of which file are in the shards so far. A preparation that was cut
// short reads on from there, and writes the same bytes as one that was not.
#include "data/prepare.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <filesystem>
#include <future>
#include <optional>

#include "io/files.h"
#include "io/json_object.h"
#include "text/input_file.h"
#include "text/piece_reader.h"

namespace tern::data {

namespace fs = std::filesystem;

static std::string file_checksum(const std::string& path) {
  text::InputFile file(path);
  io::Checksum checksum;
  std::vector<char> buffer(std::size_t{1} << 20);
  while (const std::size_t got = file.read(buffer.data(), buffer.size())) checksum.add(buffer.data(), got);
  return checksum.hex();
}

PreparedData PreparedData::open(const std::string& path) {
  const fs::path directory = path;
  const std::string about = directory / "data.json";
  std::error_code none;
  if (!fs::exists(about, none))
    throw io::FileError(fmt::format("{}: expected data that tern-lm prepare wrote but there is no data.json{}", path,
                                    fs::exists(directory / "progress.json", none) ? ": it was cut short; the same command goes on" : ""));
  const io::JsonObject json = io::read_json(about);
  if (json.get_int("tern_data") != 1)
    throw io::FileError(fmt::format("{}: expected version 1 of \"tern_data\" but got {}", about, json.get_int("tern_data")));
  const auto require_same = [&](const std::string& name, const std::string& expected) {
    const std::string file = directory / name, got = file_checksum(file);
    if (got != expected)
      throw io::FileError(
          fmt::format("{}: expected the checksum {}, as data.json says, but got {}: prepare the data again", file, expected, got));
  };
  require_same("tokenizer.json", json.get_string("tokenizer"));
  const io::JsonObject shards = json.get_object("shards");
  std::vector<TokenFile> files[2];
  std::string checksums;
  for (const std::string& name : shards.keys()) {
    if (name.find('/') != std::string::npos) throw io::FileError(fmt::format("{}: expected names of files but got {}", about, name));
    require_same(name, shards.get_string(name));
    checksums += shards.get_string(name);
    files[name.starts_with("valid") ? 1 : 0].emplace_back(directory / name, TokenFormat::llm_c);
  }
  PreparedData data{.tokenizer = text::Tokenizer::load(directory / "tokenizer.json"),
                    .end_of_text = json.get_int("end_of_text"),
                    .train = TokenList(std::move(files[0])),
                    .valid = TokenList(std::move(files[1])),
                    .train_bytes = json.get_int("train_bytes"),
                    .valid_bytes = json.get_int("valid_bytes"),
                    .digest = io::checksum(checksums)};
  const auto vocab = static_cast<std::int64_t>(data.tokenizer.vocab_size());
  if (data.train.size() != json.get_int("train_tokens") || data.valid.size() != json.get_int("valid_tokens") ||
      vocab != json.get_int("vocab") || data.end_of_text < -1 || data.end_of_text >= vocab || data.train_bytes < 0 || data.valid_bytes < 0)
    throw io::FileError(fmt::format("{}: the files beside it are not those that it describes: prepare the data again", about));
  return data;
}

namespace {

constexpr const char* new_end_of_text = "<|endoftext|>";
constexpr std::size_t most_piece_bytes = std::size_t{1} << 16, least_piece_bytes = std::size_t{1} << 10;
constexpr std::size_t most_sample_bytes = std::size_t{32} << 20;  // of the text that a tokenizer is trained on

/// A file of text.
struct Input {
  std::string path;
  bool is_valid = false, is_jsonl = false;
  std::uint64_t size = 0;  // of the file
};

/// The tokens of a piece, and the bytes of its documents.
struct Encoded {
  std::vector<std::int32_t> ids;
  std::int64_t bytes = 0;
};

/// Shards that are written, and how far they go: what progress.json says.
struct State {
  std::int64_t input = 0, pieces = 0;                  // the next input, and the pieces of it that are in the shards
  std::int64_t tokens[2] = {0, 0}, bytes[2] = {0, 0};  // of training and validation
  io::JsonObject shards;
};

class Preparation {
 public:
  explicit Preparation(const PrepareOptions& options) : options_(options), lock_(checked(options.out)) {
    for (const bool is_valid : {false, true})
      for (const std::string& path : is_valid ? options.valid : options.text) {
        fs::path name = path;
        if (name.extension() == ".gz" || name.extension() == ".zst") name = name.stem();
        const bool is_jsonl = !options.field.empty() || name.extension() == ".jsonl" || name.extension() == ".ndjson";
        inputs_.push_back({path, is_valid, is_jsonl, text::InputFile(path).size()});
        all_bytes_ += inputs_.back().size;
      }
    piece_bytes_ = std::clamp(static_cast<std::size_t>(static_cast<double>(all_bytes_) * options.valid_share / 8), least_piece_bytes,
                              most_piece_bytes);
    begin();
  }

  void run() {
    const text::Tokenizer tokenizer = make_tokenizer();
    const text::Tokenizer* const encoder = &tokenizer;
    end_of_text_ = -1;
    for (const char* name : {"<|end_of_text|>", new_end_of_text})
      if (const auto id = tokenizer.token_to_id(name)) end_of_text_ = *id;
    token_bytes_ = tokenizer.vocab_size() > 65536 ? 4 : 2;
    const std::int64_t first = state_.input;
    for (; state_.input < static_cast<std::int64_t>(inputs_.size()); ++state_.input, state_.pieces = 0) {
      const Input& input = inputs_[static_cast<std::size_t>(state_.input)];
      text::PieceReader reader(input.path, input.is_jsonl, piece_bytes_);
      std::deque<std::future<Encoded>> pending;
      std::int64_t skip = state_.input == first ? state_.pieces : 0;
      bool is_ended = false;
      while (!is_ended || !pending.empty()) {
        show(reader.read(), false);
        text::Piece piece;
        if (!is_ended && pending.size() < 4 * static_cast<std::size_t>(std::max(options_.threads, 1))) {
          is_ended = !reader.next(piece);
          if (is_ended || skip-- > 0) continue;
          pending.push_back(
              std::async(std::launch::async, [this, encoder, &input, piece = std::move(piece)] { return encode(*encoder, input, piece); }));
          continue;
        }
        write(input, pending.front().get());
        pending.pop_front();
      }
      done_bytes_ += input.size;
    }
    close();
    finish(tokenizer);
  }

 private:
  std::string path(const std::string& name) const { return fs::path(options_.out) / name; }

  static bool is_shard(const std::string& name) {
    return name.ends_with(".bin") && (name.starts_with("train-") || name.starts_with("valid-"));
  }
  static bool is_ours(const std::string& name) {
    return name == "data.json" || name == "progress.json" || name == "tokenizer.json" || is_shard(name);
  }

  /// The directory, which may hold a preparation that was cut short, and nothing else.
  static const std::string& checked(const std::string& out) {
    std::error_code none;
    bool has_progress = false, has_files = false, has_others = false;
    for (fs::directory_iterator at(out, none), end; !none && at != end; at.increment(none)) {
      const std::string name = at->path().filename().string();
      if (name == "data.json") throw io::FileError(fmt::format("{}: holds a prepared data set: remove it, or name another directory", out));
      has_progress = has_progress || name == "progress.json";
      has_files = has_files || is_ours(name);
      has_others = has_others || !(is_ours(name) || is_ours(io::temporary_target(name)));
    }
    if (has_others || (has_files && !has_progress))
      throw io::FileError(fmt::format("{}: expected no directory, or one of prepare, but it holds other files", out));
    return out;
  }

  /// A checksum of all that the output is made of.
  std::string made_of() const {
    std::string text = fmt::format("{} {} {} {} {}", options_.field, options_.separator, options_.valid_share, options_.shard_tokens,
                                   options_.tokenizer.empty() ? std::to_string(options_.vocab) : file_checksum(options_.tokenizer));
    for (const Input& input : inputs_)
      text +=
          fmt::format("\n{} {} {} {}", input.is_valid, input.size, fs::last_write_time(input.path).time_since_epoch().count(), input.path);
    return io::checksum(text);
  }

  /// Finds the state of a preparation that was cut short, or begins one.
  void begin() {
    io::remove_temporaries(options_.out, is_ours);
    std::error_code none;
    if (!fs::exists(path("progress.json"), none)) return save(made_of());
    const io::JsonObject json = io::read_json(path("progress.json"));
    if (json.get_string("made_of") != made_of()) {
      save("nothing");  // until what there was is gone
      fs::remove(path("tokenizer.json"), none);
      for (const std::string& name : json.get_object("shards").keys())
        if (is_shard(name)) fs::remove(path(name), none);
      return save(made_of());
    }
    state_.input = json.get_int("input");
    state_.pieces = json.get_int("pieces");
    for (const int part : {0, 1}) {
      state_.tokens[part] = json.get_int(names[part] + "_tokens");
      state_.bytes[part] = json.get_int(names[part] + "_bytes");
    }
    state_.shards = json.get_object("shards");
    for (std::int64_t i = 0; i < state_.input; ++i) done_bytes_ += inputs_[static_cast<std::size_t>(i)].size;
  }

  io::JsonObject& add_counts(io::JsonObject& json) const {
    for (const int part : {0, 1}) json.set(names[part] + "_tokens", state_.tokens[part]);
    for (const int part : {0, 1}) json.set(names[part] + "_bytes", state_.bytes[part]);
    return json.set("shards", state_.shards);
  }

  void save(const std::string& made_of) const {
    io::JsonObject json;
    json.set("made_of", made_of).set("input", state_.input).set("pieces", state_.pieces);
    io::write_json(path("progress.json"), add_counts(json));
  }

  text::Tokenizer make_tokenizer() const {
    const std::string file = path("tokenizer.json");
    if (std::error_code none; !fs::exists(file, none)) {
      if (options_.tokenizer.empty()) io::write_file_atomically(file, train_tokenizer().to_json());
      else {
        static_cast<void>(text::Tokenizer::load(options_.tokenizer));
        io::write_file_atomically(file, io::read_file(options_.tokenizer, std::size_t{128} << 20));
      }
    }
    return text::Tokenizer::load(file);
  }

  /// Trains on pieces at equal distances in the text: while they are too much, every second one is dropped.
  text::Tokenizer train_tokenizer() const {
    std::vector<std::vector<std::string>> sample;
    std::size_t bytes = 0, every = 1, number = 0;
    for (const Input& input : inputs_) {
      if (input.is_valid) continue;
      text::PieceReader reader(input.path, input.is_jsonl, piece_bytes_);
      for (text::Piece piece; reader.next(piece); ++number) {
        show(reader.read(), true);
        if (number % every != 0) continue;
        std::vector<std::string>& documents = sample.emplace_back();
        for_each_text(input, piece, [&](const std::string& text, bool) {
          documents.push_back(text);
          bytes += text.size();
        });
        if (bytes <= most_sample_bytes) continue;
        std::vector<std::vector<std::string>> kept;
        bytes = 0;
        for (std::size_t i = 0; i < sample.size(); i += 2)
          for (const std::string& text : kept.emplace_back(std::move(sample[i]))) bytes += text.size();
        sample = std::move(kept);
        every *= 2;
      }
    }
    std::vector<std::string> lines;
    for (std::vector<std::string>& documents : sample) std::move(documents.begin(), documents.end(), std::back_inserter(lines));
    sample.clear();
    return text::Tokenizer::train(lines, {.vocab_size = static_cast<std::size_t>(options_.vocab),
                                          .special_tokens = {new_end_of_text},
                                          .on_step = [this] { show(all_bytes_, true); }});
  }

  /// Calls f for the text of each document of a piece, and whether the document ends with it. White space alone after a separator is none.
  void for_each_text(const Input& input, const text::Piece& piece, const std::function<void(const std::string&, bool ends)>& f) const {
    if (input.is_jsonl) {
      const auto whole = [&](const std::string& text) { f(text, true); };
      return text::for_each_document(piece, input.path, options_.field.empty() ? "text" : options_.field, whole);
    }
    std::string_view rest = piece.text;
    const auto one = [&](std::string_view text, bool ends) {
      const bool is_first = text.data() == piece.text.data();
      if (is_first || !ends || text.find_first_not_of(" \t\r\n") != std::string_view::npos) f(std::string(text), ends);
    };
    if (const std::string& between = options_.separator; !between.empty())
      for (std::size_t at = rest.find(between); at != std::string_view::npos; at = rest.find(between)) {
        one(rest.substr(0, at), true);
        rest.remove_prefix(at + between.size());
      }
    one(rest, piece.ends_document);
  }

  Encoded encode(const text::Tokenizer& tokenizer, const Input& input, const text::Piece& piece) const {
    Encoded result;
    for_each_text(input, piece, [&](const std::string& text, bool ends) {
      const std::vector<std::int32_t> ids = tokenizer.encode(text);
      result.ids.insert(result.ids.end(), ids.begin(), ids.end());
      result.bytes += static_cast<std::int64_t>(text.size());
      if (end_of_text_ >= 0 && ends) result.ids.push_back(end_of_text_);
    });
    return result;
  }

  /// Appends a piece. Of the pieces of training text every so many-th goes to validation, so that these have the share in the bytes.
  void write(const Input& input, Encoded piece) {
    const double bytes = static_cast<double>(piece.bytes), valid = static_cast<double>(state_.bytes[1]);
    const double share = options_.valid.empty() ? options_.valid_share : 0;
    const bool is_due = share * (static_cast<double>(state_.bytes[0]) + valid + bytes) >= valid + bytes / 2;
    const int part = input.is_valid || (is_due && share > 0) ? 1 : 0;
    // The next tokens of the shard are from another place of the document.
    if (part == 1 && !input.is_valid && end_of_text_ >= 0 && !piece.ids.empty() && piece.ids.back() != end_of_text_)
      piece.ids.push_back(end_of_text_);
    std::optional<TokenWriter>& writer = writers_[part];
    if (!piece.ids.empty()) {
      if (!writer) writer.emplace(path(next_shard(part)), token_bytes_);
      writer->write(std::span<const std::int32_t>(piece.ids));
    }
    state_.tokens[part] += static_cast<std::int64_t>(piece.ids.size());
    state_.bytes[part] += piece.bytes;
    ++state_.pieces;
    if (writer && writer->size() >= options_.shard_tokens) {
      close();
      save(made_of());
    }
  }

  std::string next_shard(int part) const {
    const std::vector<std::string> keys = state_.shards.keys();
    const auto count = std::count_if(keys.begin(), keys.end(), [&](const std::string& name) { return name.starts_with(names[part]); });
    return fmt::format("{}-{:05}.bin", names[part], count);
  }

  void close() {
    for (const int part : {0, 1}) {
      if (!writers_[part]) continue;
      writers_[part]->commit();
      writers_[part].reset();
      const std::string name = next_shard(part);
      state_.shards.set(name, file_checksum(path(name)));
    }
  }

  void finish(const text::Tokenizer& tokenizer) {
    if (state_.tokens[0] == 0) throw io::FileError(fmt::format("{}: expected text to train on but got none", options_.text.front()));
    if (state_.tokens[1] == 0 && (!options_.valid.empty() || options_.valid_share > 0))
      throw io::FileError(
          fmt::format("{}: expected enough text for a part to validate on but got {} bytes: give --valid FILE, or "
                      "--valid-share 0 for none",
                      options_.text.front(), state_.bytes[0]));
    io::JsonObject json;
    json.set("tern_data", 1).set("vocab", tokenizer.vocab_size()).set("end_of_text", end_of_text_);
    json.set("tokenizer", file_checksum(path("tokenizer.json")));
    io::write_json(path("data.json"), add_counts(json));
    fs::remove(path("progress.json"));
  }

  void show(std::uint64_t read, bool trains_tokenizer) const {
    if (options_.on_progress)
      options_.on_progress({trains_tokenizer, std::min(done_bytes_ + read, all_bytes_), all_bytes_, state_.tokens[0] + state_.tokens[1]});
  }

  inline static const std::string names[2] = {"train", "valid"};
  const PrepareOptions& options_;
  const io::DirectoryLock lock_;
  std::vector<Input> inputs_;
  std::uint64_t all_bytes_ = 0, done_bytes_ = 0;
  std::size_t piece_bytes_ = most_piece_bytes;
  State state_;
  std::optional<TokenWriter> writers_[2];
  std::int32_t end_of_text_ = -1;
  int token_bytes_ = 2;
};

}  // namespace

void prepare(const PrepareOptions& options) { Preparation(options).run(); }

}  // namespace tern::data
