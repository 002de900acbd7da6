// A file of the cache of compiled kernels, on disk. The first byte says which: bytes as they are, or code with its header, of which the
// next three bytes flip bits: so that the mutated bytes are not all lost to the first comparison.
#include <unistd.h>

#include "compile/kernel_cache.h"
#include "files.h"
#include "fuzz.h"

using namespace tern;
using compiler::KernelCache, compiler::cache_file;
using fuzz::require;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const test::TempDirectory directory;
  static const KernelCache cache(directory.path());
  static const std::string key(64, 'a');
  if (size < 4) return 0;
  const std::string_view rest = fuzz::text_of(data, size).substr(4);
  std::string file(rest);
  bool is_whole = false;
  if (data[0] % 2 == 1) {
    file = cache_file(key, rest);
    const std::size_t at = data[1] + 256u * (data[2] % 16);
    if (at < file.size()) file[at] = static_cast<char>(file[at] ^ data[3]);
    is_whole = !rest.empty() && (at >= file.size() || data[3] == 0);
  }
  test::spill(directory / "compile" / key, file);
  const std::optional<std::string> code = cache.find(key);
  require(code || !is_whole, "code that was kept is found");
  require(!code || (!code->empty() && cache_file(key, *code) == file), "code that is found is that of its file");
  return 0;
}
