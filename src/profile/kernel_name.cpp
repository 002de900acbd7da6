#include "profile/kernel_name.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <regex>

namespace tern::profile {

std::string readable_kernel_name(const std::string& name) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> demangled(abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status), &std::free);
  if (status != 0 || !demangled) return name;
  std::string function = demangled.get();
  const std::string anonymous = "(anonymous namespace)::";
  for (std::size_t at = function.find(anonymous); at != std::string::npos; at = function.find(anonymous))
    function.erase(at, anonymous.size());
  function.resize(std::min(function.find('('), function.size()));
  function.resize(std::min(function.find('<'), function.size()));
  if (const std::size_t space = function.rfind(' '); space != std::string::npos) function.erase(0, space + 1);
  std::smatch file;
  // nvcc writes _GLOBAL__N__<hash>_<length>_<file>_cu_<hash>.
  static const std::regex pattern("_GLOBAL__N__[0-9a-f]+_[0-9]+_([A-Za-z0-9_]+?)_cu_");
  if (!std::regex_search(name, file, pattern)) return function;
  if (const std::size_t colons = function.rfind("::"); colons != std::string::npos) function.erase(0, colons + 2);
  return file[1].str() + ".cu: " + function;
}

bool is_product_kernel(const std::string& name) {
  for (const char* part : {"nvjet", "gemm", "splitK", "tf32", "cutlass"})
    if (name.find(part) != std::string::npos) return true;
  return false;
}

}  // namespace tern::profile
