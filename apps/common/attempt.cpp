#include "common/attempt.h"

#include <fmt/format.h>

#include <utility>

#include "common/output.h"
#include "io/file_error.h"

namespace tern::apps {

bool Attempt::operator()(const std::function<void()>& write) {
  try {
    write();
    return true;
  } catch (const io::FileError& error) {
    if (!std::exchange(has_failed_, true)) write_message(fmt::format("{}: {}: training goes on\n", program_, error.what()));
    return false;
  }
}

}  // namespace tern::apps
