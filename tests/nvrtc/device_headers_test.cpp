#include <nvrtc.h>

#include <filesystem>
#include <string>
#include <vector>

#include "catch.h"
#include "paths.h"

// The device library must stay free of host headers, so that kernels made at run time can use it: NVRTC, which has none of the host's
// headers, compiles each header of cuda/device for Hopper. It needs no GPU.
namespace {

const std::string source_directory = tern::test::source_directory;

/// Headers of the standard library that device code may include, as libcu++ has them.
constexpr const char* standard_headers[] = {"bit", "cmath", "cstddef", "cstdint", "limits", "type_traits", "utility"};

std::string log_of(nvrtcProgram program) {
  std::size_t size = 0;
  nvrtcGetProgramLogSize(program, &size);
  std::string log(size, '\0');
  nvrtcGetProgramLog(program, log.data());
  return log;
}

/// NVRTC's messages on the source; empty where it compiles.
std::string compile(const std::string& source) {
  std::vector<std::string> texts;
  for (const char* name : standard_headers)
    texts.push_back("#include <cuda/std/" + std::string(name) + ">\nnamespace std { using namespace cuda::std; }\n");
  std::vector<const char*> pointers;
  for (const std::string& text : texts) pointers.push_back(text.c_str());
  nvrtcProgram program = nullptr;
  REQUIRE(nvrtcCreateProgram(&program, source.c_str(), "source.cu", static_cast<int>(pointers.size()), pointers.data(), standard_headers) ==
          NVRTC_SUCCESS);
  const std::string include_path = "--include-path=" + source_directory + "/src";
  const char* const options[] = {"--gpu-architecture=sm_90a",
                                 "--std=c++20",
                                 "--device-as-default-execution-space",
                                 include_path.c_str(),
                                 "--include-path=" TERN_CUDA_INCLUDE_DIR,
                                 "--include-path=" TERN_CUDA_INCLUDE_DIR "/cccl"};
  const nvrtcResult result = nvrtcCompileProgram(program, std::size(options), options);
  std::string log = result == NVRTC_SUCCESS ? "" : log_of(program) + nvrtcGetErrorString(result);
  nvrtcDestroyProgram(&program);
  return log;
}

}  // namespace

TEST_CASE("NVRTC takes every header of the device library", "[nvrtc]") {
  int headers = 0;
  for (const auto& entry : std::filesystem::directory_iterator(source_directory + "/src/cuda/device")) {
    const std::string name = entry.path().filename().string();
    INFO(name);
    CHECK(compile("#include \"cuda/device/" + name + "\"\n") == "");
    ++headers;
  }
  CHECK(headers > 5);
}

TEST_CASE("NVRTC compiles a kernel from parts of the device library", "[nvrtc]") {
  CHECK(compile(R"(
    #include "cuda/device/group.cuh"
    #include "cuda/device/math.cuh"
    #include "cuda/device/philox_dropout.cuh"
    #include "cuda/device/vec16.cuh"
    using namespace tern::gpu;
    extern "C" __global__ void exp_of_dropped(const tern::bf16* x, tern::bf16* y, float* sum, Dropout<float> dropout) {
      float values[8], total = 0;
      unpack<tern::bf16>(read_packed_cg<8>(x + 8 * threadIdx.x), values);
      dropout(values, 8 * threadIdx.x, dropout.position());
      for (float& value : values) total += value = exp_approx(value);
      write_packed<8>(y + 8 * threadIdx.x, pack<tern::bf16>(values));
      total = block_all_reduce<PlusOp<float>>(total);
      if (threadIdx.x == 0) *sum = total;
    })") == "");
}

TEST_CASE("NVRTC compiles attention to one tile of keys from fragment tiles", "[nvrtc]") {
  CHECK(compile(R"(
    #include "cuda/device/async_copy.cuh"
    #include "cuda/device/fragment.cuh"
    using namespace tern::gpu;
    extern "C" __global__ void attend(float* y) {
      __shared__ uint4 shared[3 * SharedTile<64>::bytes(32) / 16];
      const unsigned q = shared_address(shared), k = q + SharedTile<64>::bytes(32), v = k + SharedTile<64>::bytes(32);
      RegisterOperand<32, 64> queries;
      queries.assign<tern::f16>(OperandA<64>(q));
      FragmentTile<32, 32> scores = {};
      mma<tern::f16, 64>(Product(scores, queries, OperandBt<64>(k)));
      FragmentTile<32, 64> sums = {};
      float row_sum[sums.lane_rows];
      for (int r = 0; r < sums.lane_rows; ++r) {
        scores.exp2_row(r, 1, scores.row_max(r));
        row_sum[r] = scores.combine_sum(scores.partial_row_sum(r));
      }
      mma<tern::f16, 32>(Product(sums, scores, OperandB<64>(v)));
      for (int r = 0; r < sums.lane_rows; ++r) sums.store_row(r, 1 / row_sum[r], y + 64 * sums.row_of(r), 0, 64);
    })") == "");
}

TEST_CASE("NVRTC refuses a host header", "[nvrtc]") {
  CHECK(compile("#include \"cuda/runtime/launch.h\"\n") != "");
  CHECK(compile("#include <map>\n") != "");
}
