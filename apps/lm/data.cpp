#include "lm/data.h"

#include <fmt/format.h>

#include <filesystem>

#include "io/files.h"
#include "io/json_object.h"
#include "text/input_file.h"

namespace tern::lm {

namespace fs = std::filesystem;

std::string file_checksum(const std::string& path) {
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
  std::vector<data::TokenFile> files[2];
  std::string checksums;
  for (const std::string& name : shards.keys()) {
    if (name.find('/') != std::string::npos) throw io::FileError(fmt::format("{}: expected names of files but got {}", about, name));
    require_same(name, shards.get_string(name));
    checksums += shards.get_string(name);
    files[name.starts_with("valid") ? 1 : 0].emplace_back(directory / name, data::TokenFormat::llm_c);
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

}  // namespace tern::lm
