// Prints, one JSON line a file, what tern makes of files whose names come on the standard input.
//   fuzz-inspect safetensors          {"ok": {name: [dtype, shape, crc32 of the bytes]}, "metadata": {...}} or {"refused": message}
//   fuzz-inspect tokenizer TEXTS      {"ok": [[ids, text, text without special tokens]...]} or {"refused": message}; TEXTS is a JSON list
#include <zlib.h>

#include <iostream>
#include <nlohmann/json.hpp>

#include "io/files.h"
#include "io/safetensors.h"
#include "text/bpe.h"
#include "text/input_file.h"

using Json = nlohmann::json;

static Json safetensors(const std::string& path) {
  constexpr const char* names[] = {"F32", "F64", "F16", "BF16", "I32", "I64", "U8", "BOOL"};
  const tern::io::TensorFile file = tern::io::load_safetensors(path);
  Json result = Json::object();
  for (const auto& [name, tensor] : file.tensors) {
    Json shape = Json::array();
    for (const std::int64_t size : tensor.shape()) shape.push_back(size);
    const auto bytes = static_cast<std::size_t>(tern::numel(tensor.shape())) * tern::size_of(tensor.dtype());
    const uLong sum = bytes == 0 ? 0 : crc32(0, static_cast<const Bytef*>(tensor.view().data), static_cast<uInt>(bytes));
    result[name] = {names[static_cast<int>(tensor.dtype())], shape, sum};
  }
  return {{"ok", result}, {"metadata", file.metadata}};
}

static Json tokenizer(const std::string& path, const Json& texts) {
  const auto read = tern::text::Tokenizer::load(path);
  Json result = Json::array();
  for (const Json& text : texts) {
    const std::vector<std::int32_t> ids = read.encode(text.get_ref<const std::string&>(), {.special_tokens = true});
    result.push_back({ids, read.decode(ids, false), read.decode(ids, true)});
  }
  return {{"ok", result}};
}

int main(int argc, char** argv) {
  const std::string kind = argc > 1 ? argv[1] : "";
  if (kind != "safetensors" && !(kind == "tokenizer" && argc == 3)) {
    std::cerr << "usage: fuzz-inspect safetensors | tokenizer TEXTS, with the names of files on the standard input\n";
    return 2;
  }
  const Json texts = argc == 3 ? Json::parse(tern::text::read_file(argv[2], std::size_t{1} << 26)) : Json();
  for (std::string path; std::getline(std::cin, path);) {
    Json line;
    try {
      line = kind == "safetensors" ? safetensors(path) : tokenizer(path, texts);
    } catch (const tern::io::FileError& error) {
      line = {{"refused", error.what()}};
    }
    std::cout << line.dump(-1, ' ', true, Json::error_handler_t::replace) << std::endl;
  }
}
