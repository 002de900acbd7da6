// Token files of nanoGPT and llm.c, windows on them, and packing.
#include "data/token_file.h"

#include <cstring>
#include <filesystem>
#include <string>

#include "catch.h"
#include "data/loader.h"
#include "files.h"
#include "io/files.h"
#include "message.h"

namespace tern::data {

namespace {

using Ids = std::vector<std::int64_t>;
using test::slurp, test::spill, test::TempDirectory;

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

std::string header(std::int32_t magic, std::int32_t version, std::int32_t count) {
  std::vector<std::int32_t> numbers(256);
  numbers[0] = magic, numbers[1] = version, numbers[2] = count;
  return bytes_of(numbers);
}

Ids all(const TokenFile& file) {
  Ids result(static_cast<std::size_t>(file.size()));
  file.read(0, result);
  return result;
}

}  // namespace

TEST_CASE("Token files of nanoGPT and llm.c are read as they are") {
  const TempDirectory directory;
  const auto path = directory / "tokens.bin";
  spill(path, bytes_of(std::vector<std::uint16_t>{1, 65535, 3, 50256, 0}));
  CHECK(all(TokenFile(path)) == Ids{1, 65535, 3, 50256, 0});
  CHECK(TokenFile(path).token_bytes() == 2);
  CHECK(TokenFile(path)[3] == 50256);

  spill(path, header(20240520, 1, 3) + bytes_of(std::vector<std::uint16_t>{7, 65535, 9}));
  CHECK(all(TokenFile(path)) == Ids{7, 65535, 9});
  CHECK(TokenFile(path, TokenFormat::raw_u16).size() == 512 + 3);
  spill(path, header(20240801, 7, 2) + bytes_of(std::vector<std::uint32_t>{128255, 4294967295u}));
  CHECK(all(TokenFile(path)) == Ids{128255, 4294967295});
  CHECK(TokenFile(path).token_bytes() == 4);

  spill(path, "");
  CHECK(TokenFile(path).size() == 0);
  spill(path, header(20240520, 1, 0));
  CHECK(TokenFile(path).size() == 0);
}

TEST_CASE("A git-lfs pointer is not a file of tokens") {
  const TempDirectory directory;
  spill(directory / "tokens.bin", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 548105171\n");
  std::string message;
  try {
    TokenFile{directory / "tokens.bin"};
  } catch (const io::FileError& error) {
    message = error.what();
  }
  CHECK(message.find("tokens.bin: expected the file itself but got a git-lfs pointer to it: run `git lfs pull`") != message.npos);
}

TEST_CASE("What is written is read, and has llm.c's header") {
  const TempDirectory directory;
  const auto path = directory / "tokens.bin";
  save_tokens(path, Ids{5, 0, 65535});
  CHECK(slurp(path) == header(20240520, 1, 3) + bytes_of(std::vector<std::uint16_t>{5, 0, 65535}));
  save_tokens(path, Ids{70000}, 4);
  CHECK(slurp(path) == header(20240801, 7, 1) + bytes_of(std::vector<std::uint32_t>{70000}));
  CHECK_THROWS_WITH(save_tokens(path, Ids{1, 65536}), "[save_tokens] expected tokens in [0, 2^16) but number 1 is 65536");
  CHECK_THROWS_AS(save_tokens(path, Ids{-1}), Error);
  CHECK_THROWS_AS(save_tokens(path, Ids{1}, 3), Error);
  CHECK(TokenFile(path)[0] == 70000);  // a write that failed has left it
}

TEST_CASE("Cut and foreign token files are named with what is wrong") {
  const TempDirectory directory;
  const auto path = directory / "tokens.bin";
  const auto error = [&](const std::string& content, TokenFormat format = TokenFormat::automatic) -> std::string {
    spill(path, content);
    try {
      const TokenFile file(path, format);
    } catch (const io::FileError& fault) {
      const std::string message = fault.what(), name = path.string() + ": ";
      return message.starts_with(name) ? message.substr(name.size()) : "(not named) " + message;
    }
    return "(no error)";
  };
  CHECK(error("abc") == "expected tokens of 2 bytes but the file has 3, an odd number: is it cut?");
  const std::string whole = header(20240520, 1, 3) + bytes_of(std::vector<std::uint16_t>{7, 8, 9});
  CHECK(error(whole) == "(no error)");
  CHECK(error(whole.substr(0, whole.size() - 2)) == "expected 3 tokens of 2 bytes, as the header says, but there are 4 bytes: it is cut");
  CHECK(error(whole + "x") == "expected 3 tokens of 2 bytes, as the header says, but there are 7 bytes: it is longer than it should be");
  for (const std::size_t length : {std::size_t(4), std::size_t(1023)})
    CHECK(error(whole.substr(0, length)) ==
          "expected llm.c's header of 1024 bytes but the file has " + std::to_string(length) + ": it is cut");
  CHECK(error(header(20240520, 2, 0)) == "expected version 1 of llm.c's tokens 20240520 but got 2");
  CHECK(error(header(20240801, 1, 0)) == "expected version 7 of llm.c's tokens 20240801 but got 1");
  CHECK(error(header(20240520, 1, -5)) == "expected a number of tokens >= 0 but the header says -5");
  CHECK(error(header(12345, 1, 0), TokenFormat::llm_c) ==
        "expected llm.c's magic number 20240520 or 20240801 but got 12345: is it of raw tokens?");
  CHECK(error("ab", TokenFormat::llm_c) == "expected llm.c's header of 1024 bytes but the file has 2");
  CHECK_THROWS_AS(TokenFile(directory / "none.bin"), io::FileError);
  CHECK_THROWS_AS(TokenFile(directory.path()), io::FileError);
}

TEST_CASE("Windows of a token file are inputs and their targets") {
  const TempDirectory directory;
  const auto path = directory / "tokens.bin";
  Ids tokens;
  for (std::int64_t i = 0; i < 11; ++i) tokens.push_back(100 + i);
  save_tokens(path, tokens);
  const TokenFile file(path);
  const TokenWindows side_by_side(file, 3), sliding(file, 3, 1);
  CHECK(side_by_side.size() == 3);  // 0 .. 3, 3 .. 6, 6 .. 9; the next would need a 13th token
  CHECK(sliding.size() == 8);
  CHECK(TokenWindows(file, 10).size() == 1);
  CHECK(TokenWindows(file, 11).size() == 0);
  CHECK(side_by_side[2][0].to_vector<std::int64_t>() == Ids{106, 107, 108});
  CHECK(side_by_side[2][1].to_vector<std::int64_t>() == Ids{107, 108, 109});
  const Tensors batch = sliding.batch(Ids{7, 0});
  CHECK(batch[0].shape() == Shape{2, 3});
  CHECK(batch[0].to_vector<std::int64_t>() == Ids{107, 108, 109, 100, 101, 102});
  CHECK(batch[1].to_vector<std::int64_t>() == Ids{108, 109, 110, 101, 102, 103});
  CHECK_THROWS_WITH(side_by_side[3], "[TokenWindows] expected one of 3 windows, counted from 0, but got 3");
  CHECK_THROWS_AS(TokenWindows(file, 0), Error);
  CHECK_THROWS_AS(file[11], Error);
  CHECK_THROWS_AS(file[-1], Error);

  Loader loader(TokenWindows(file, 3, 0, 107), {.batch_size = 1, .shuffle = false, .workers = 2});
  CHECK((*loader.next())[0].shape() == Shape{1, 3});
  std::string message;
  try {
    loader.next(), loader.next();
  } catch (const io::FileError& error) {
    message = error.what();
  }
  CHECK(message == path.string() + ": expected tokens below 107, the size of the vocabulary, but token 7 is 107");
}

TEST_CASE("Windows of tokens in memory are those of a file of them") {
  const TempDirectory directory;
  const auto path = directory / "tokens.bin";
  Ids tokens;
  for (std::int64_t i = 0; i < 11; ++i) tokens.push_back(100 + i);
  save_tokens(path, tokens);
  const TokenWindows from_file(TokenFile(path), 3, 2), from_memory(tokens, 3, 2);
  REQUIRE(from_memory.size() == from_file.size());
  for (std::int64_t i = 0; i < from_file.size(); ++i)
    for (const std::size_t part : {0, 1})
      CHECK(from_memory[i][part].to_vector<std::int64_t>() == from_file[i][part].to_vector<std::int64_t>());
  CHECK(TokenWindows(Ids{}, 3).size() == 0);
  CHECK(TokenWindows(tokens, 11).size() == 0);
  Loader loader(TokenWindows(tokens, 5), {.batch_size = 2, .shuffle = false, .workers = 2});
  CHECK((*loader.next())[1].to_vector<std::int64_t>() == Ids{101, 102, 103, 104, 105, 106, 107, 108, 109, 110});
  CHECK_THROWS_WITH(TokenWindows(tokens, 3, 0, 107)[2],
                    "[TokenWindows] expected tokens below 107, the size of the vocabulary, but token 7 is 107");
  CHECK_THROWS_WITH(TokenWindows(Ids{0, -1, 2}, 2, 0, 3)[0],
                    "[TokenWindows] expected tokens below 3, the size of the vocabulary, but token 1 is -1");
  CHECK_THROWS_AS(TokenWindows(tokens, 0), Error);
}

TEST_CASE("Windows go on from a file to the next") {
  const TempDirectory directory;
  Ids tokens;
  std::vector<TokenFile> files;
  for (const std::int64_t size : {5, 0, 1, 2, 13}) {
    const auto path = directory / std::to_string(files.size());
    Ids part;
    for (std::int64_t i = 0; i < size; ++i) part.push_back(100 + static_cast<std::int64_t>(tokens.size()) + i);
    save_tokens(path, part, files.empty() ? 4 : 2);
    files.emplace_back(path);
    tokens.insert(tokens.end(), part.begin(), part.end());
  }
  for (const std::int64_t stride : {0, 1, 3}) {
    const TokenWindows from_files(TokenList(files), 6, stride), from_memory(tokens, 6, stride);
    REQUIRE(from_files.size() == from_memory.size());
    for (std::int64_t i = 0; i < from_files.size(); ++i)
      for (const std::size_t part : {0, 1})
        CHECK(from_files[i][part].to_vector<std::int64_t>() == from_memory[i][part].to_vector<std::int64_t>());
  }
  const TokenList list(files);
  CHECK(list.size() == static_cast<std::int64_t>(tokens.size()));
  CHECK(list.place(6) == std::pair((directory / "3").string(), std::int64_t{0}));
  Ids two(2);
  list.read(5, two);
  CHECK(two == Ids{105, 106});
  CHECK_THROWS_WITH(list.read(20, two), "[TokenList] expected tokens in [0, 21) but got [20, 20 + 2)");
  CHECK_THROWS_AS(list.read(-1, two), Error);
  CHECK_THROWS_AS(list.place(21), Error);
  CHECK(TokenWindows(TokenList(), 6).size() == 0);
  CHECK(message_of<io::FileError>([&] { TokenWindows(TokenList(files), 6, 0, 107)[1]; }) ==
        (directory / "3").string() + ": expected tokens below 107, the size of the vocabulary, but token 1 is 107");
}

TEST_CASE("A token file that is written piece by piece is that of one write") {
  const TempDirectory directory;
  for (const int bytes : {2, 4}) {
    const Ids tokens{5, 0, 65535, 7};
    save_tokens(directory / "whole", tokens, bytes);
    {
      TokenWriter writer(directory / "pieces", bytes);
      writer.write(std::span(tokens).first(1));
      writer.write(std::vector<std::int32_t>{0, 65535});
      writer.write(std::span(tokens).subspan(3));
      CHECK(writer.size() == 4);
      CHECK_FALSE(std::filesystem::exists(directory / "pieces"));
      TokenWriter moved = std::move(writer);
      moved.commit();
    }
    CHECK(slurp(directory / "pieces") == slurp(directory / "whole"));
    std::filesystem::remove(directory / "pieces");
    {
      TokenWriter(directory / "pieces", bytes).write(tokens);
    }
    CHECK(directory.count() == 1);  // without a commit nothing is left
    CHECK_THROWS_WITH(TokenWriter(directory / "pieces").write(std::vector<std::int32_t>{1, -1}),
                      "[save_tokens] expected tokens in [0, 2^16) but number 1 is -1");
  }
}

TEST_CASE("A mapping outlives the file's name and its handle's copies") {
  const TempDirectory directory;
  const auto path = directory / "tokens.bin";
  save_tokens(path, Ids{1, 2, 3, 4});
  std::optional<TokenWindows> windows;
  {
    const TokenFile file(path);
    windows.emplace(file, 1);
  }
  std::filesystem::remove(path);
  CHECK((*windows)[2][1].to_vector<std::int64_t>() == Ids{4});
}

TEST_CASE("Packing puts each sequence whole into a row") {
  const std::vector<Ids> sequences{{1, 2}, {3, 4, 5, 6, 7}, {}, {8, 9, 10}, {11}, {12, 13}};
  const PackedRows rows = pack(sequences, 6, 99);
  CHECK(rows.ids.to_vector<std::int64_t>() == Ids{3, 4, 5, 6, 7, 11, 8, 9, 10, 1, 2, 99, 12, 13, 99, 99, 99, 99});
  CHECK(rows.segments.to_vector<std::int64_t>() == Ids{1, 1, 1, 1, 1, 2, 1, 1, 1, 2, 2, 0, 1, 1, 0, 0, 0, 0});
  CHECK(rows.positions.to_vector<std::int64_t>() == Ids{0, 1, 2, 3, 4, 0, 0, 1, 2, 0, 1, 0, 0, 1, 0, 0, 0, 0});
  CHECK(rows.ids.shape() == Shape{3, 6});
  CHECK(pack({}, 4).ids.shape() == Shape{0, 4});
  CHECK_THROWS_WITH(pack(sequences, 4), "[pack] expected sequences of at most 4 tokens but number 1 has 5");
  CHECK_THROWS_AS(pack(sequences, 0), Error);
}

}  // namespace tern::data
