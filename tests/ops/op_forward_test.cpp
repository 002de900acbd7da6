// Forward checks over the whole table: against the reference, in every dtype and every layout in memory, with guards.
#include <fmt/format.h>

#include <cmath>

#include "for_each_case.h"
#include "ops/factory.h"
#include "tensor/context.h"

namespace tern::op_cases {

namespace {

Tensors inputs_of(const Case& op, DType dtype) {
  Tensors inputs;
  for (std::size_t i = 0; i < op.inputs.size(); ++i) inputs.push_back(make_input(op.inputs[i], dtype, i));
  return inputs;
}

void check_outputs(const Row& row, const Tensors& got, const reference::Arrays& want, double factor = 1) {
  REQUIRE(got.size() == want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    const std::string found = difference(got[i], want[i], forward_tolerance(row, want[i].dtype) * factor);
    if (!found.empty()) FAIL_CHECK("output " << i << ": " << found);
  }
}

}  // namespace

TEST_CASE("Ops give the reference's results in every dtype and layout, and write nothing else") {
  for_each_case([](const Row& row, const Case& op, DType dtype) {
    const Tensors inputs = inputs_of(op, dtype);
    References references{{}, dtype};
    for (const Tensor& x : inputs) references.inputs.push_back(read(x));
    const reference::Arrays want = op.reference(references);
    for (Layout layout : layouts) {
      if (inputs.empty() && layout != Layout::contiguous) continue;
      // Ops that fill a tensor with random numbers take contiguous ones only.
      const bool contiguous_only = row.name == "uniform_" || row.name == "normal_";
      if (contiguous_only && layout != Layout::contiguous && layout != Layout::offset) continue;
      INFO(name(layout));
      Tensors placed;
      std::vector<std::vector<unsigned char>> before;
      std::vector<std::uint32_t> versions;
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        // An op that writes its input needs a fresh one for each layout.
        placed.push_back(with_layout(op.inputs[i].edited ? make_input(op.inputs[i], dtype, i) : inputs[i], layout));
        before.push_back(op.inputs[i].edited ? guard_bytes(placed[i]) : storage_bytes(placed[i]));
        versions.push_back(placed[i].version());
      }
      const Tensors got = op.call({placed, dtype, cpu});
      check_outputs(row, got, want);
      for (std::size_t i = 0; i < placed.size(); ++i) {
        INFO("input " << i);
        const bool edits = op.inputs[i].edited;
        CHECK((edits ? guard_bytes(placed[i]) : storage_bytes(placed[i])) == before[i]);
        CHECK(placed[i].version() == versions[i] + (edits ? 1 : 0));
        if (edits) CHECK(got.at(0).is_same(placed[i]));
      }
    }
  });
}

TEST_CASE("Guarded memory is NaN before it is written, and notices a byte past its end") {
  GuardedMemory memory;
  for (const int past : {0, 1}) {
    Tensor x = empty({3});
    CHECK(std::isnan(x.data<float>()[2]));
    const bool has_room = backend::allocated_size(Cpu{}, 12) > 12;  // not with AddressSanitizer, which notices it itself
    if (past && has_room) reinterpret_cast<char*>(x.data<float>())[12] = 0;
    memory.overruns();
    x = Tensor();
    CHECK(memory.overruns() == (has_room ? past : 0));
  }
}

TEST_CASE("Ops give the same bits on one thread and on two, and write nothing past the end of any memory") {
  const int before = num_threads();
  GuardedMemory memory;
  for_each_case([&](const Row& row, const Case& op, DType dtype) {
    const Tensors whole = inputs_of(op, dtype);
    for (Layout layout : {Layout::contiguous, Layout::transposed}) {
      if (layout != Layout::contiguous && (op.inputs.empty() || row.name == "uniform_" || row.name == "normal_")) continue;
      INFO(name(layout));
      std::vector<std::vector<unsigned char>> results[2];
      for (const int threads : {1, 2}) {
        set_num_threads(threads);
        manual_seed(7);
        Tensors inputs;
        for (const Tensor& x : whole) inputs.push_back(with_layout(layout == Layout::contiguous ? clone(x) : x, layout));
        for (const Tensor& y : op.call({inputs, dtype, cpu})) results[threads - 1].push_back(storage_bytes(contiguous(y)));
      }
      CHECK(results[0] == results[1]);
      CHECK(memory.overruns() == 0);
    }
  });
  set_num_threads(before);
}

TEST_CASE("Ops take broadcast inputs, whose elements share memory") {
  for_each_case([](const Row& row, const Case& op, DType dtype) {
    const Tensors whole = inputs_of(op, dtype);
    References all{{}, dtype};
    for (const Tensor& x : whole) all.inputs.push_back(read(x));
    for (std::size_t i = 0; i < op.inputs.size(); ++i) {
      if (op.inputs[i].edited) continue;
      for (int dim = 0; dim < op.inputs[i].shape.size(); ++dim) {
        if (op.inputs[i].shape[dim] < 2) continue;
        INFO("input " << i << ", dimension " << dim);
        Tensors inputs = whole;
        for (std::size_t k = 0; k < inputs.size(); ++k)
          if (op.inputs[k].edited) inputs[k] = clone(whole[k]);
        Strides strides = inputs[i].strides();
        strides[dim] = 0;
        inputs[i] = inputs[i].window(inputs[i].shape(), strides, 0);
        References references = all;
        references.inputs[i] = read(inputs[i]);
        const reference::Arrays want = op.reference(references);
        // Roundings of like elements are alike: they add up where those of different ones cancel in part, as in a score of like elements.
        check_outputs(row, op.call({inputs, dtype, cpu}), want, 2);
      }
    }
  });
}

TEST_CASE("What an op gives is recorded where, and only where, an input asks for a gradient") {
  for_each_case([](const Row& row, const Case& op, DType dtype) {
    if (!row.differentiable || !is_floating(dtype) || op.inputs.empty()) return;
    Tensors inputs = inputs_of(op, dtype);
    for (const Tensor& y : op.call({inputs, dtype, cpu})) CHECK_FALSE(y.requires_grad());
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (!op.inputs[i].differentiable || !is_floating(inputs[i].dtype())) continue;
      INFO("input " << i);
      inputs[i].set_requires_grad();
      bool recorded = false;
      for (const Tensor& y : op.call({inputs, dtype, cpu})) recorded = recorded || y.requires_grad();
      CHECK(recorded);
      {
        const NoGrad unrecorded;
        for (const Tensor& y : op.call({inputs, dtype, cpu}))
          if (!y.is_same(inputs[i])) CHECK((!y.requires_grad() || y.is_leaf()));
      }
      inputs[i].set_requires_grad(false);
    }
  });
}

}  // namespace tern::op_cases
