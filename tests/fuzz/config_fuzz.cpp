// config.json: read, ask for every type, write, read again.
#include "fuzz.h"
#include "io/files.h"
#include "io/json_object.h"

using namespace tern::io;
using tern::fuzz::require;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto asks = [](const JsonObject& object, const char* key) {
    const auto ask = [](auto&& f) {
      try {
        f();
      } catch (const FileError& error) {
        tern::fuzz::require_message(error.what());
      }
    };
    ask([&] { object.get_string(key); });
    ask([&] { object.get_bool(key); });
    ask([&] { object.get_int(key); });
    ask([&] { object.get_double(key); });
    ask([&] { object.get_object(key).dump(); });
  };
  try {
    const JsonObject object = JsonObject::parse(tern::fuzz::text_of(data, size), "f");
    for (const char* key : {"tern_run", "lr", "src", "width", "layers", "a", ""}) asks(object, key);
    const std::string written = object.dump();
    require(JsonObject::parse(written, "f").dump() == written, "a written object is read as the same");
    require(JsonObject::parse(object.pretty(), "f").dump() == written, "a pretty object is read as the same");
  } catch (const FileError& error) {
    tern::fuzz::require_message(error.what());
  }
  return 0;
}
