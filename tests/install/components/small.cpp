#include <tern/ops/factory.h>
#include <tern/ops/reduce.h>
#include <tern/version.h>

#include <cstring>

int main() {
  const bool right_sum = tern::sum(tern::ones({2, 3})).item() == 6;
  return right_sum && std::strcmp(tern::version(), TERN_VERSION_STRING) == 0 && TERN_VERSION >= 100 ? 0 : 1;
}
