#include "run.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <filesystem>
#include <fstream>
#include <thread>

#include "backend/error.h"
#include "code.h"

extern char** environ;

namespace study::loops {

namespace {

/// A directory that only this user can read, for as long as this lives.
struct Directory {
  std::filesystem::path path;
  Directory() {
    std::error_code none;
    std::string name = (std::filesystem::temp_directory_path(none) / "tern-loops-XXXXXX").string();
    if (none || !mkdtemp(name.data())) tern::fail("loops", "expected to make a directory in " + name + " but could not: set TMPDIR");
    path = name;
  }
  ~Directory() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;
};

void compile(const std::filesystem::path& from, const std::filesystem::path& to, const std::filesystem::path& log) {
  const std::string source = from.string(), library = to.string();
  // As the library: guarded steps of a loop can then be vectors with masks.
  std::vector<const char*> arguments = {"c++",
                                        "-std=c++20",
                                        "-O3",
                                        "-march=native",
                                        "-fno-math-errno",
                                        "-fno-trapping-math",
                                        "-w",
                                        "-Wno-psabi",
                                        "-shared",
                                        "-fPIC",
                                        "-o",
                                        library.c_str(),
                                        source.c_str(),
                                        nullptr};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 1, log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_adddup2(&actions, 1, 2);
  pid_t child = 0;
  const int failure = posix_spawnp(&child, "c++", &actions, nullptr, const_cast<char* const*>(arguments.data()), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (failure != 0) tern::fail("loops", "expected a C++ compiler, c++, on the PATH but found none");
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
  std::ifstream in(log);
  std::string line, first;
  while (std::getline(in, line))
    if (first.empty() || line.find("error") != std::string::npos) {
      first = line;
      if (line.find("error") != std::string::npos) break;
    }
  tern::fail("loops", "expected c++ to compile the program but it says: " + first);
}

}  // namespace

CpuKernel::CpuKernel(const Program& program) {
  const Directory directory;
  const std::filesystem::path source = directory.path / "loops.cpp", library = directory.path / "loops.so";
  std::ofstream(source) << cpp_text(program);
  compile(source, library, directory.path / "log");
  library_ = std::shared_ptr<void>(dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL), [](void* x) {
    if (x) dlclose(x);
  });
  if (!library_) tern::fail("loops", fmt::format("expected to load the compiled program but could not: {}", dlerror()));
  for (std::size_t nest = 0; nest < program.body.size(); ++nest) {
    const Node& root = program.body[nest];
    const bool is_shared_out = root.kind == Node::Kind::loop && program.loops[static_cast<std::size_t>(root.loop)].bind == Bind::cores;
    nests_.emplace_back(reinterpret_cast<Function>(dlsym(library_.get(), function_name(nest).c_str())),
                        is_shared_out ? steps_of(program, nest, Bind::cores) : 1);
    if (!nests_.back().first) tern::fail("loops", "expected a function of each nest in the compiled program");
  }
}

void CpuKernel::run(std::span<float* const> tensors, int threads) const {
  for (const auto& [function, steps] : nests_) {
    const std::int64_t parts = std::clamp<std::int64_t>(threads, 1, steps);
    std::vector<std::jthread> others;
    for (std::int64_t i = 1; i < parts; ++i)
      others.emplace_back([&, i, f = function, n = steps] { f(tensors.data(), n * i / parts, n * (i + 1) / parts); });
    function(tensors.data(), 0, steps / parts);
  }
}

std::vector<std::vector<double>> run_between_red_zones(const Program& program, const std::vector<std::vector<double>>& values,
                                                       const std::function<void(std::span<float* const>)>& f) {
  constexpr std::size_t red_zone = 64;
  constexpr std::uint32_t mark = 0x7FC0DEAD;  // a NaN
  std::vector<std::vector<float>> memory;
  std::vector<float*> tensors;
  for (const std::vector<double>& x : values) {
    memory.emplace_back(x.size() + 2 * red_zone, std::bit_cast<float>(mark));
    std::transform(x.begin(), x.end(), memory.back().begin() + red_zone, [](double v) { return static_cast<float>(v); });
  }
  for (std::vector<float>& x : memory) tensors.push_back(x.data() + red_zone);
  f(tensors);
  std::vector<std::vector<double>> results;
  for (std::size_t t = 0; t < memory.size(); ++t) {
    const auto is_kept = [](float x) { return std::bit_cast<std::uint32_t>(x) == mark; };
    if (!std::all_of(memory[t].begin(), memory[t].begin() + red_zone, is_kept) ||
        !std::all_of(memory[t].end() - red_zone, memory[t].end(), is_kept))
      tern::fail("loops", fmt::format("expected writes within {} but the compiled program writes beside it", program.tensors[t].name));
    results.emplace_back(memory[t].begin() + red_zone, memory[t].end() - red_zone);
  }
  return results;
}

}  // namespace study::loops
