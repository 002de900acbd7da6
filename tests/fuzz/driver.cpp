// A small fuzzer for compilers without libFuzzer: it takes the same arguments, mutates the seeds at random, and keeps no coverage.
//   fuzz-NAME [-runs=N] [-max_total_time=SECONDS] [-seed=N] [-max_len=N] [FILE-OR-DIRECTORY...]
// An input that ends the program lies in ./crash-input. A FILE alone is run once, as a finding is tried again.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <exception>
#include <filesystem>
#include <iterator>
#include <vector>

#include "bytes.h"
#include "files.h"
#include "fuzz.h"

namespace {

namespace fs = std::filesystem;
using tern::test::slurp, tern::test::SplitMix64;

std::string current;  // the input at hand

void keep_input() {
  const int file = ::open("crash-input", O_WRONLY | O_CREAT | O_TRUNC, 0666);
  if (file < 0 || ::write(file, current.data(), current.size()) < 0) return;
  ::close(file);
}

extern "C" void on_signal(int signal) {
  keep_input();
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

// Pieces that mean something to one of the readers.
constexpr const char* words[] = {"{",
                                 "}",
                                 "[",
                                 "]",
                                 "\"",
                                 ",",
                                 ":",
                                 "{}",
                                 "[]",
                                 "null",
                                 "true",
                                 "false",
                                 "-1",
                                 "0",
                                 "1e999",
                                 "1.5",
                                 "18446744073709551616",
                                 "9223372036854775807",
                                 "\\u0000",
                                 "\\ud800",
                                 "\n",
                                 "\r\n",
                                 "\xEF\xBB\xBF",
                                 "\xC2\x9B",
                                 "\xE2\x80\xAE",
                                 "\xFF",
                                 "\xF0\x9F\x98\x80",
                                 "dtype",
                                 "shape",
                                 "data_offsets",
                                 "__metadata__",
                                 "F32",
                                 "BOOL",
                                 "vocab",
                                 "merges",
                                 "added_tokens",
                                 "<pad>",
                                 "\x1f\x8b\x08"};

std::string mutate(const std::vector<std::string>& seeds, SplitMix64& random, std::size_t most) {
  std::string text = seeds[random(seeds.size())];
  for (std::uint64_t n = 1 + random(4); n > 0; --n) {
    const std::size_t at = random(text.size() + 1);
    const std::string& other = seeds[random(seeds.size())];
    switch (random(8)) {
      case 0:
        if (at < text.size()) text[at] = static_cast<char>(text[at] ^ (1 << random(8)));
        break;
      case 1:
        if (at < text.size()) text[at] = static_cast<char>(random(256));
        break;
      case 2: text.erase(at, 1 + random(1 + random(40))); break;
      case 3: text.insert(at, text, random(text.size() + 1), random(60)); break;
      case 4: text.insert(at, words[random(std::size(words))]); break;
      case 5: text.insert(at, other, random(other.size() + 1), random(100)); break;
      case 6: text.resize(at); break;
      default: text.insert(at, std::string(random(20), static_cast<char>(random(256))));
    }
  }
  if (text.size() > most) text.resize(most);
  return text;
}

void run(const std::string& text) {
  current = text;
  try {
    LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "an exception of another kind: %s\n", error.what());
    std::abort();
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::uint64_t runs = ~std::uint64_t{0}, seed = 1, most = 1 << 16;
  double seconds = 1e18;
  std::vector<std::string> seeds;
  bool mutates = false;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const auto number = [&](const char* name, auto& value) {
      if (argument.rfind(name, 0) != 0) return false;
      value = static_cast<std::remove_reference_t<decltype(value)>>(std::stod(argument.substr(std::strlen(name))));
      return mutates = true;
    };
    if (number("-runs=", runs) || number("-max_total_time=", seconds) || number("-seed=", seed) || number("-max_len=", most)) continue;
    if (argument.starts_with("-")) continue;  // another option of libFuzzer's
    if (!fs::is_directory(argument)) {
      seeds.push_back(slurp(argument));
      continue;
    }
    std::vector<fs::path> files(fs::directory_iterator(argument), {});
    std::sort(files.begin(), files.end());
    for (const fs::path& file : files) seeds.push_back(slurp(file));
  }
  for (const int signal : {SIGABRT, SIGSEGV, SIGFPE, SIGILL, SIGBUS}) std::signal(signal, on_signal);
  for (const std::string& text : seeds) run(text);
  if (!mutates) return 0;
  seeds.emplace_back();
  SplitMix64 random{seed};
  const auto start = std::chrono::steady_clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
  std::uint64_t done = 0;
  for (; done < runs && (done % 64 != 0 || elapsed() < seconds); ++done) run(mutate(seeds, random, most));
  std::printf("Done %llu runs in %.0f second(s)\n", static_cast<unsigned long long>(done), elapsed());
}
