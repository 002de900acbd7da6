#include "io/json_log.h"

#include <utility>

namespace tern::io {

JsonLog::JsonLog(std::string path) : file_(std::move(path)) {}

void JsonLog::write(const JsonObject& line) { file_.write(line.dump() + "\n"); }

}  // namespace tern::io
