// Preloaded into a program, this makes one system call on one directory tree fail, or cuts the power there.
//
//   TERN_FAULT_ROOT   the tree; calls on other files pass
//   TERN_FAULT_AT     the number of the call, from 1; 0: none
//   TERN_FAULT_KIND   eio, enospc, eintr: the call fails so, once
//                     short: a write takes half of its bytes, and the next one fails with ENOSPC; another call fails with ENOSPC
//                     cut: bytes that no fsync has covered are lost, names are as they were; then the process ends
//                     cut-names: names that no fsync of their directory has covered are lost as well
//   TERN_FAULT_SPARE  an empty directory on the same file system, for what cut-names takes back
//   TERN_FAULT_COUNT  a file that gets the number of calls when the program ends
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

std::string parent(const std::string& path) { return path.substr(0, path.rfind('/')); }

/// A change of a name that a loss of power takes back while its directory is not synced.
struct Change {
  enum Kind { made, made_directory, removed, removed_directory, renamed } kind;
  std::string path, from, spare;  ///< `spare` keeps what was removed or replaced
};

struct State {
  const std::string root = variable("TERN_FAULT_ROOT"), kind = variable("TERN_FAULT_KIND"), spare = variable("TERN_FAULT_SPARE");
  const long at = std::atol(variable("TERN_FAULT_AT").c_str());
  const bool keeps_names = kind == "cut-names";
  std::recursive_mutex mutex;
  long calls = 0, spares = 0;
  bool is_full = false;
  std::map<std::string, off_t> synced;  ///< bytes of each file that was opened to be written
  std::vector<Change> changes;

  ~State() {
    if (const std::string file = variable("TERN_FAULT_COUNT"); !file.empty())
      if (std::FILE* out = std::fopen(file.c_str(), "w")) {
        std::fprintf(out, "%ld\n", calls);
        std::fclose(out);
      }
  }
};

State& state() {
  static State instance;
  return instance;
}

bool is_inside(const std::string& path) {
  const std::string& root = state().root;
  return !root.empty() && path.starts_with(root) && (path.size() == root.size() || path[root.size()] == '/');
}

std::string absolute(const char* path) {
  if (path[0] == '/') return std::filesystem::path(path).lexically_normal();
  char here[PATH_MAX];
  return ::getcwd(here, sizeof here) ? std::filesystem::path(std::string(here) + "/" + path).lexically_normal().string() : path;
}

std::string path_of(int descriptor) {
  char path[PATH_MAX];
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  const ssize_t size = ::readlink(link.c_str(), path, sizeof path);
  return size > 0 ? std::string(path, static_cast<std::size_t>(size)) : "";
}

std::string path_at(int directory, const char* path) {
  return path[0] == '/' || directory == AT_FDCWD ? absolute(path) : path_of(directory) + "/" + path;
}

/// A second name that keeps a file from being lost.
std::string keep(const std::string& path) {
  if (!state().keeps_names) return "";
  const std::string spare = state().spare + "/" + std::to_string(state().spares++);
  return ::link(path.c_str(), spare.c_str()) == 0 ? spare : "";
}

void take_back(const Change& change) {
  static auto* const rename_file = next<int(const char*, const char*)>("rename");
  static auto* const unlink_file = next<int(const char*)>("unlink");
  static auto* const make_directory = next<int(const char*, mode_t)>("mkdir");
  static auto* const remove_directory = next<int(const char*)>("rmdir");
  switch (change.kind) {
    case Change::made: unlink_file(change.path.c_str()); break;
    case Change::made_directory: remove_directory(change.path.c_str()); break;
    case Change::removed_directory: make_directory(change.path.c_str(), 0777); break;
    case Change::renamed: rename_file(change.path.c_str(), change.from.c_str()); [[fallthrough]];
    case Change::removed:
      if (!change.spare.empty()) rename_file(change.spare.c_str(), change.path.c_str());
  }
}

[[noreturn]] void cut_power() {
  for (const auto& [path, bytes] : state().synced) {
    struct stat status;
    if (::stat(path.c_str(), &status) == 0 && status.st_size > bytes) static_cast<void>(::truncate(path.c_str(), bytes));
  }
  if (state().keeps_names)
    for (auto change = state().changes.rbegin(); change != state().changes.rend(); ++change) take_back(*change);
  ::_exit(99);
}

/// Names that changed in a directory are there for good. Changes before that know a directory by its old name learn the new one.
void settle(const std::string& directory) {
  auto& changes = state().changes;
  for (std::size_t i = changes.size(); i-- > 0;) {
    if (parent(changes[i].path) != directory && (changes[i].from.empty() || parent(changes[i].from) != directory)) continue;
    const Change change = changes[i];
    changes.erase(changes.begin() + static_cast<std::ptrdiff_t>(i));
    if (change.kind == Change::removed_directory) {  // and so is what was removed in it
      const auto last = changes.begin() + static_cast<std::ptrdiff_t>(i);
      const auto kept = std::remove_if(changes.begin(), last, [&](const Change& in) { return in.path.starts_with(change.path + "/"); });
      i -= static_cast<std::size_t>(last - kept);
      changes.erase(kept, last);
    }
    if (change.kind != Change::renamed) continue;
    for (std::size_t earlier = 0; earlier < i; ++earlier)
      for (std::string* path : {&changes[earlier].path, &changes[earlier].from})
        if (path->starts_with(change.from + "/")) *path = change.path + path->substr(change.from.size());
  }
}

/// Counts a call on the tree; true if it is to fail, with errno set.
bool fails(const std::string& path) {
  State& now = state();
  if (!is_inside(path) || ++now.calls != now.at) return false;
  if (now.kind.starts_with("cut")) cut_power();
  errno = now.kind == "eio" ? EIO : now.kind == "eintr" ? EINTR : ENOSPC;
  return true;
}

using Lock = std::lock_guard<std::recursive_mutex>;

int opened(const std::string& path, int flags, mode_t mode, int (*open_file)(const char*, int, ...)) {
  const Lock lock(state().mutex);
  const bool writes = (flags & O_ACCMODE) != O_RDONLY || (flags & O_DIRECTORY) != 0;
  if (writes && fails(path)) return -1;
  const bool is_new = is_inside(path) && (flags & O_CREAT) != 0 && ::access(path.c_str(), F_OK) != 0;
  const int descriptor = open_file(path.c_str(), flags, mode);
  if (descriptor < 0 || !is_inside(path) || (flags & O_ACCMODE) == O_RDONLY) return descriptor;
  struct stat status;
  if (::fstat(descriptor, &status) == 0) state().synced.emplace(path, is_new ? 0 : status.st_size);
  if (is_new) state().changes.push_back({Change::made, path, "", ""});
  return descriptor;
}

ssize_t written(int descriptor, std::size_t bytes, const std::function<ssize_t(std::size_t)>& write_bytes) {
  const Lock lock(state().mutex);
  State& now = state();
  const std::string path = path_of(descriptor);
  if (now.is_full && is_inside(path)) {
    now.is_full = false;
    ++now.calls;
    errno = ENOSPC;
    return -1;
  }
  if (!fails(path)) return write_bytes(bytes);
  if (now.kind != "short" || bytes < 2) return -1;
  now.is_full = true;
  return write_bytes(bytes / 2);
}

int removed(const std::string& path, bool is_directory, const std::function<int()>& remove) {
  const Lock lock(state().mutex);
  if (!is_inside(path)) return remove();
  if (fails(path)) return -1;
  const std::string spare = is_directory ? "" : keep(path);
  const int result = remove();
  if (result == 0) state().changes.push_back({is_directory ? Change::removed_directory : Change::removed, path, "", spare});
  return result;
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  static auto* const real = next<int(const char*, int, ...)>("open");
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? static_cast<mode_t>(va_arg(rest, int)) : 0;
  va_end(rest);
  return opened(absolute(path), flags, mode, real);
}

ssize_t write(int descriptor, const void* data, std::size_t bytes) {
  static auto* const real = next<ssize_t(int, const void*, std::size_t)>("write");
  return written(descriptor, bytes, [&](std::size_t size) { return real(descriptor, data, size); });
}

ssize_t pwrite(int descriptor, const void* data, std::size_t bytes, off_t offset) {
  static auto* const real = next<ssize_t(int, const void*, std::size_t, off_t)>("pwrite");
  return written(descriptor, bytes, [&](std::size_t size) { return real(descriptor, data, size, offset); });
}

int fsync(int descriptor) {
  static auto* const real = next<int(int)>("fsync");
  const Lock lock(state().mutex);
  const std::string path = path_of(descriptor);
  if (fails(path)) return -1;
  struct stat status;
  if (is_inside(path) && ::fstat(descriptor, &status) == 0) {
    if (S_ISDIR(status.st_mode)) settle(path);
    else state().synced[path] = status.st_size;
  } else {
    settle(path);  // the parent of the tree
  }
  static_cast<void>(real);  // the disk of a test need not wait
  return 0;
}

int ftruncate(int descriptor, off_t size) {
  static auto* const real = next<int(int, off_t)>("ftruncate");
  const Lock lock(state().mutex);
  return fails(path_of(descriptor)) ? -1 : real(descriptor, size);
}

int close(int descriptor) {
  static auto* const real = next<int(int)>("close");
  const Lock lock(state().mutex);
  struct stat status;
  const bool counts = ::fcntl(descriptor, F_GETFL) > 0 && ::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
  const bool fault = counts && fails(path_of(descriptor));
  const int error = errno, result = real(descriptor);
  if (fault) errno = error;
  return fault ? -1 : result;
}

int rename(const char* old_name, const char* new_name) {
  static auto* const real = next<int(const char*, const char*)>("rename");
  const Lock lock(state().mutex);
  const std::string from = absolute(old_name), to = absolute(new_name);
  if (!is_inside(to)) return real(old_name, new_name);
  if (fails(to)) return -1;
  const std::string spare = keep(to);
  const int result = real(old_name, new_name);
  if (result != 0) return result;
  state().changes.push_back({Change::renamed, to, from, spare});
  // Knowledge of a file, or of those in a directory, goes with it.
  std::map<std::string, off_t> moved;
  for (const auto& [path, bytes] : state().synced)
    moved[path == from ? to : path.starts_with(from + "/") ? to + path.substr(from.size()) : path == to ? "" : path] = bytes;
  state().synced = moved;
  return 0;
}

int mkdir(const char* path, mode_t mode) {
  static auto* const real = next<int(const char*, mode_t)>("mkdir");
  const Lock lock(state().mutex);
  if (fails(absolute(path))) return -1;
  const int result = real(path, mode);
  if (result == 0 && is_inside(absolute(path))) state().changes.push_back({Change::made_directory, absolute(path), "", ""});
  return result;
}

int rmdir(const char* path) {
  static auto* const real = next<int(const char*)>("rmdir");
  return removed(absolute(path), true, [&] { return real(path); });
}

int unlink(const char* path) {
  static auto* const real = next<int(const char*)>("unlink");
  return removed(absolute(path), false, [&] { return real(path); });
}

int unlinkat(int directory, const char* path, int flags) {
  static auto* const real = next<int(int, const char*, int)>("unlinkat");
  return removed(path_at(directory, path), (flags & AT_REMOVEDIR) != 0, [&] { return real(directory, path, flags); });
}

int remove(const char* path) {
  static auto* const real = next<int(const char*)>("remove");
  struct stat status;
  const bool is_directory = ::lstat(path, &status) == 0 && S_ISDIR(status.st_mode);
  return removed(absolute(path), is_directory, [&] { return real(path); });
}

}  // extern "C"
