// The cache of compiled kernels on disk: whatever happened to its files, code is the one that was kept, or none.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <thread>

#include "backend/loaded_kernel.h"
#include "bytes.h"
#include "catch.h"
#include "compile/compile.h"
#include "compile/generated.h"
#include "files.h"
#include "message.h"
#include "ops/factory.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "skip.h"

using namespace tern;
using compiler::KernelCache;
using test::slurp, test::spill, test::contents;
namespace fs = std::filesystem;

namespace {

const std::string key(64, '7');
/// Has every byte.
const std::string code = [] {
  std::string bytes;
  for (int i = 0; i < 3000; ++i) bytes += static_cast<char>(i * 7 + i / 256);
  return bytes;
}();

struct Directory : test::TempDirectory {
  std::string cache = path() / "home" / "tern";
  fs::path files = path() / "home" / "tern" / "compile";
  fs::path file = files / key;
  std::optional<std::string> find() const { return KernelCache(cache).find(key); }
  void keep() const { KernelCache(cache).keep(key, code); }
};

/// Runs f in another process, and returns how that ended.
pid_t start(const std::function<void()>& f) {
  const pid_t child = ::fork();
  if (child == 0) {
    f();
    ::_exit(0);
  }
  return child;
}
int end_of(pid_t child) {
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

}  // namespace

TEST_CASE("Code that was kept is found, in a directory of the user's alone") {
  const Directory directory;
  CHECK_FALSE(directory.find());
  directory.keep();
  CHECK(directory.find() == code);
  CHECK_FALSE(KernelCache(directory.cache).find(std::string(64, '8')));
  CHECK(contents(directory.files).size() == 1);
  for (const auto& [path, mode] : {std::pair(directory.files, 0700), {directory.file, 0600}}) {
    struct stat status;
    REQUIRE(::stat(path.c_str(), &status) == 0);
    CHECK((status.st_mode & 0777) == static_cast<mode_t>(mode));
  }
  CHECK(slurp(directory.file) == compiler::cache_file(key, code));
}

TEST_CASE("Code of a file that is not as it was written is not there, and is written anew") {
  const Directory directory;
  directory.keep();
  const std::string whole = slurp(directory.file);
  const auto is_refused = [&](const std::string& content) {
    spill(directory.file, content);
    if (directory.find()) return false;
    directory.keep();
    return directory.find() == code && slurp(directory.file) == whole;
  };
  for (std::size_t size = 0; size < whole.size(); ++size)
    if (!is_refused(whole.substr(0, size))) FAIL("cut to " << size << " bytes");
  test::SplitMix64 random{1};
  for (int i = 0; i < 1000; ++i) {
    std::string flipped = whole;
    const std::size_t at = i < 200 ? static_cast<std::size_t>(i) : random(whole.size());
    flipped[at] = static_cast<char>(flipped[at] ^ 1 << random(8));
    if (!is_refused(flipped)) FAIL("a bit flipped of byte " << at);
  }
  CHECK(is_refused(whole + "x"));
  CHECK(is_refused(compiler::cache_file(std::string(64, '8'), code)));  // another kernel's
  CHECK(is_refused(compiler::cache_file(key, "")));
}

TEST_CASE("What is no file of the user's is not read, and no file outside is touched") {
  const Directory directory;
  const fs::path elsewhere = directory / "elsewhere";
  fs::create_directories(elsewhere);
  spill(elsewhere / key, compiler::cache_file(key, code));
  const auto before = contents(elsewhere);
  SECTION("a file is a link") {
    fs::create_directories(directory.files);
    fs::create_symlink(elsewhere / key, directory.file);
    CHECK_FALSE(directory.find());
    directory.keep();
    CHECK(directory.find() == code);
    CHECK_FALSE(fs::is_symlink(directory.file));
  }
  SECTION("the directory is a link") {
    fs::create_directories(directory.cache);
    fs::create_directory_symlink(elsewhere, directory.files);
    CHECK_FALSE(directory.find());
    KernelCache(directory.cache).keep(std::string(64, '8'), code);
    KernelCache(directory.cache).trim(0);
  }
  SECTION("the directory is a file") {
    fs::create_directories(directory.cache);
    spill(directory.files, "text");
    CHECK_FALSE(directory.find());
    directory.keep();
    KernelCache(directory.cache).trim(0);
    CHECK(slurp(directory.files) == "text");
  }
  SECTION("a file is a pipe without a writer, or a directory") {
    fs::create_directories(directory.files);
    REQUIRE(::mkfifo(directory.file.c_str(), 0600) == 0);
    CHECK_FALSE(directory.find());
    directory.keep();
    CHECK(directory.find() == code);
    fs::remove(directory.file);
    fs::create_directories(directory.file);
    directory.keep();
    CHECK_FALSE(directory.find());
    CHECK(contents(directory.files).empty());
  }
  CHECK(contents(elsewhere) == before);
}

TEST_CASE("A directory to which others can write is not used") {
  const Directory directory;
  directory.keep();
  for (const mode_t mode : {0777, 0720, 0702}) {
    REQUIRE(::chmod(directory.files.c_str(), mode) == 0);
    CHECK_FALSE(directory.find());
    KernelCache(directory.cache).keep(std::string(64, '8'), code);
    KernelCache(directory.cache).trim(0);
    CHECK(contents(directory.files).size() == 1);
  }
  REQUIRE(::chmod(directory.files.c_str(), 0755) == 0);
  CHECK(directory.find() == code);
  REQUIRE(::chmod(directory.file.c_str(), 0666) == 0);
  CHECK_FALSE(directory.find());
}

TEST_CASE("A directory of somebody else's is not used") {
  if (::geteuid() != 0) return test::skip("it needs root, who gives files away");
  const Directory directory;
  directory.keep();
  REQUIRE(::chown(directory.files.c_str(), 65534, 65534) == 0);
  CHECK_FALSE(directory.find());
  KernelCache(directory.cache).keep(std::string(64, '8'), code);
  KernelCache(directory.cache).trim(0);
  CHECK(contents(directory.files).size() == 1);
  REQUIRE(::chown(directory.files.c_str(), 0, 0) == 0);
  REQUIRE(::chown(directory.file.c_str(), 65534, 65534) == 0);
  CHECK_FALSE(directory.find());
}

TEST_CASE("Without a place for files there is no cache") {
  const test::TempDirectory directory;
  for (const std::string& place : {std::string(), std::string("/proc/tern"), spill(directory / "file", "text").string()}) {
    const KernelCache cache(place);
    cache.keep(key, code);
    cache.trim(0);
    CHECK_FALSE(cache.find(key));
  }
  CHECK(slurp(directory / "file") == "text");
}

TEST_CASE("On a disk that is full, what is there stays") {
  const Directory directory;
  directory.keep();
  const pid_t child = start([&] {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit few{1000, 1000};
    if (::setrlimit(RLIMIT_FSIZE, &few) != 0) ::_exit(1);
    KernelCache(directory.cache).keep(key, code);
    KernelCache(directory.cache).keep(std::string(64, '8'), code);
    if (directory.find() != code) ::_exit(2);
  });
  CHECK(end_of(child) == 0);
  CHECK(contents(directory.files).size() == 1);
  CHECK(directory.find() == code);
}

TEST_CASE("Eight processes keep and find the same kernels") {
  const Directory directory;
  directory.keep();
  std::vector<pid_t> children;
  for (int i = 0; i < 8; ++i)
    children.push_back(start([&] {
      for (int k = 0; k < 200; ++k) {
        directory.keep();
        if (directory.find() != code) ::_exit(1);
      }
    }));
  for (const pid_t child : children) CHECK(end_of(child) == 0);
  CHECK(contents(directory.files).size() == 1);
}

TEST_CASE("Writers that are killed leave nothing that is found, and for an hour at most") {
  const Directory directory;
  const std::string large(1 << 20, 'x');
  for (int i = 0; i < 100; ++i) {
    const pid_t child = start([&] {
      for (;;) KernelCache(directory.cache).keep(key, large);
    });
    std::this_thread::sleep_for(std::chrono::microseconds(500 + 137 * i));
    ::kill(child, SIGKILL);
    end_of(child);
    const auto found = directory.find();
    if (found && found != large) FAIL("another code");
  }
  spill(directory.files / ".0000000000000000", "half");
  const timespec old[2] = {{0, UTIME_OMIT}, {std::time(nullptr) - 3700, 0}};
  for (const auto& entry : fs::directory_iterator(directory.files)) ::utimensat(AT_FDCWD, entry.path().c_str(), old, 0);
  spill(directory.files / ".1111111111111111", "another's");
  directory.keep();
  KernelCache(directory.cache).trim();
  CHECK(contents(directory.files).size() == 2);
  CHECK(directory.find() == code);
}

TEST_CASE("The cache drops what was not used for longest") {
  const Directory directory;
  const KernelCache cache(directory.cache);
  const auto key_of = [](int i) { return std::string(64, static_cast<char>('0' + i)); };
  for (int i = 0; i < 5; ++i) {
    cache.keep(key_of(i), code);
    const timespec times[2] = {{0, UTIME_OMIT}, {1'000'000 + i, 0}};
    REQUIRE(::utimensat(AT_FDCWD, (directory.files / key_of(i)).c_str(), times, 0) == 0);
  }
  CHECK(cache.find(key_of(0)) == code);  // so 1 and 2 are the oldest
  const auto file_bytes = compiler::cache_file(key, code).size();
  cache.trim(5 * file_bytes);
  CHECK(contents(directory.files).size() == 5);
  cache.trim(4 * file_bytes - 1);
  for (int i = 0; i < 5; ++i) CHECK(cache.find(key_of(i)).has_value() == (i != 1 && i != 2));
}

TEST_CASE("A key is of all that the code depends on") {
  CHECK(compiler::key_of("text", "sm_90a") == compiler::key_of("text", "sm_90a"));
  CHECK(compiler::key_of("text", "sm_90a") != compiler::key_of("text", "sm_80"));
  CHECK(compiler::key_of("text", "sm_90a") != compiler::key_of("text2", "sm_90a"));
  CHECK(compiler::key_of("text", "sm_90a").size() == 64);
}

TEST_CASE("A kernel is compiled once, and anew where its file is damaged") {
  if (!compiler::has_nvrtc()) return test::skip("no NVRTC");
  const Directory directory;
  const KernelCache cache(directory.cache);
  const std::string text = "extern \"C\" __global__ void kernel(float* x) { x[threadIdx.x] += 1.0f; }\n";
  const std::string compiled = compiler::compile_cuda(text, "sm_90a");
  const auto is_kept = [&](const char* architecture) {
    const compiler::CudaCode found = compiler::compile_cuda(text, architecture, cache);
    CHECK((found.code == compiled) == (std::string(architecture) == "sm_90a"));
    return found.was_kept;
  };
  CHECK_FALSE(is_kept("sm_90a"));
  CHECK(is_kept("sm_90a"));
  CHECK_FALSE(is_kept("sm_80"));
  CHECK(is_kept("sm_80"));
  const fs::path file = directory.files / compiler::key_of(text, "sm_90a");
  std::string damaged = slurp(file);
  REQUIRE(damaged == compiler::cache_file(file.filename(), compiled));
  damaged.back() = static_cast<char>(damaged.back() ^ 1);
  spill(file, damaged);
  CHECK_FALSE(is_kept("sm_90a"));
  CHECK(is_kept("sm_90a"));
  CHECK_THROWS_AS(compiler::compile_cuda("no text", "sm_90a", cache), Error);
  CHECK(contents(directory.files).size() == 2);
}

TEST_CASE("A compiled function says which kernels the cache had", "[cuda]") {
  if (!compiler::has_nvrtc()) return test::skip("no NVRTC");
  const char* const value = std::getenv("XDG_CACHE_HOME");
  const std::optional<std::string> before = value ? std::optional<std::string>(value) : std::nullopt;
  const Directory directory;
  ::setenv("XDG_CACHE_HOME", (directory / "home").c_str(), 1);
  // Formulas of this test alone: no kernel of this process has their texts.
  const auto first = [](const Tensor& a) { return exp(sin(a) * a) - 0.375 * tanh(sin(sin(a))); };
  const auto second = [](const Tensor& a) { return cos(sin(a) * a) - 0.375 * tanh(cos(cos(a))); };
  const auto run = [](const auto& f, Device device) {
    const DeviceScope here(device);
    auto compiled = tern::compile(f, device);
    const Tensor x = ones({64, 64});
    for (int i = 0; i < 4; ++i) compiled(x);
    return std::pair(compiled.report(), compiled.show(Stage::code));
  };
  CHECK(contains(run(first, cuda()).first, "1 kernels generated: 1 compiled and 0 from the cache"));
  CHECK(contents(directory.files).size() == 1);
  // A kernel that another process compiled: its text is that of the function on the CPU.
  std::string text = run(second, cpu).second;
  text.pop_back();
  with_backend(cuda(), [&](auto device) {
    if constexpr (requires { backend::architecture_of(device, cuda()); })
      compiler::compile_cuda(text, backend::architecture_of(device, cuda()), KernelCache(directory.cache));
  });
  CHECK(contains(run(second, cuda()).first, "1 kernels generated: 0 compiled and 1 from the cache"));
  before ? ::setenv("XDG_CACHE_HOME", before->c_str(), 1) : ::unsetenv("XDG_CACHE_HOME");
}
