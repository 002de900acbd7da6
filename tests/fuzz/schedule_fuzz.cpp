// A schedule: the first byte says which kernel, and the rest is its text. What is parsed is printed and parsed again; what is applied is
// proved, and then computes what the kernel does.
#include "backend/error.h"
#include "fuzz.h"
#include "loops/interpret.h"
#include "loops/schedule.h"

using namespace study::loops;
using tern::fuzz::require;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1) return 0;
  static const std::vector<Program> kernels = {kernel("matmul", {3, 5, 4}), kernel("softmax", {2, 7}), kernel("rms_norm", {3, 4}),
                                               kernel("gelu", {9})};
  const Program& plain = kernels[data[0] % kernels.size()];
  try {
    const std::vector<Line> lines = parse_schedule(tern::fuzz::text_of(data, size).substr(1), "f");
    for (Line line : lines) {
      Line again = parse_schedule(to_text(line), "f").at(0);
      again.number = line.number;
      require(again == line, "a line is printed as it was read");
    }
    const Program p = schedule(plain, lines, "f");
    if (statements_run(p) > 1e4) return 0;
    const Values values = make_values(plain);
    compare("f", interpret(p, values).back(), interpret(plain, values).back(), 1e-12);
  } catch (const tern::Error& error) {
    tern::fuzz::require_message(error.what());
  }
  return 0;
}
