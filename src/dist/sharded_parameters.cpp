#include "dist/sharded_parameters.h"

#include "autodiff/node.h"
#include "autodiff/parameter_buffer.h"
#include "backend/observer.h"
#include "nn/module.h"
#include "ops/copy.h"
#include "ops/factory.h"

namespace tern::dist {

static Tensor part_of(const Tensor& x, const ProcessGroup& group) {
  const std::int64_t part = x.numel() / group.size();
  return elements_of(x, part * group.rank(), part * (group.rank() + 1));
}

ShardedParameters::~ShardedParameters() {
  if (context().after_op == this) context().after_op = nullptr;
}

FlatStorage& ShardedParameters::storage_of(const Block& block) { return *flat_storage(block.whole); }
bool ShardedParameters::is_here(const Block& block) { return block.whole.defined() && storage_of(block).is_here(); }

std::size_t ShardedParameters::add(const Tensors& parameters, bool is_block) {
  const NoGrad unrecorded;
  const DType dtype = parameters[0].dtype();
  const Device device = group_.device();
  const std::int64_t vectors = padded_size(1, dtype) * group_.size();
  const std::int64_t count = (padded_size(parameters, dtype) + vectors - 1) / vectors * vectors;

  const Tensor flat = zeros({count}, dtype, device), masters = size_of(dtype) == 2 ? zeros({count}, DType::f32, device) : Tensor();
  const Tensors slices = windows_of(flat, parameters, dtype);
  for (std::size_t i = 0; i < parameters.size(); ++i) copy_(slices[i], parameters[i].detach());
  if (masters.defined()) {
    const Tensors master_slices = windows_of(masters, parameters, dtype);
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const Tensor master = master_of(parameters[i]);
      copy_(master_slices[i], master.defined() ? master : cast(parameters[i].detach(), DType::f32));
    }
  }
  group_.broadcast(flat).wait();
  if (masters.defined()) group_.broadcast(masters).wait();

  const std::size_t number = units_.size();
  units_.emplace_back().is_block = is_block;
  Unit& unit = units_.back();
  unit.values = make_block(flat, number, &Unit::values);
  if (masters.defined()) unit.masters = make_block(masters, number, &Unit::masters);
  const Tensors here = windows_of(unit.values.whole, parameters, dtype);
  for (std::size_t i = 0; i < parameters.size(); ++i) nn::detail::rebind(parameters[i], here[i]);
  FlatStorage& storage = storage_of(unit.values);
  storage.masters = unit.masters.whole;
  storage.masters_version = unit.values.version = storage.version();
  return number;
}

ShardedParameters::Block ShardedParameters::make_block(const Tensor& flat, std::size_t unit, Block Unit::* kind) {
  const auto fetch = [weak = weak_from_this(), unit, kind](FlatStorage&) {
    const auto self = weak.lock();
    if (!self) fail("DataParallel", "expected the model's DataParallel to live as long as its sharded parameters are read");
    self->fetch(unit, kind);
  };
  return {.whole = flat_on_demand(flat.numel(), flat.dtype(), flat.device(), fetch), .own = clone(part_of(flat, group_))};
}

void ShardedParameters::fetch(std::size_t number, Block Unit::* kind) {
  if (context().recording)
    fail("DataParallel",
         "expected a step as written, but a graph is being recorded: the memory of sharded parameters is at other addresses in each step");
  Unit& unit = units_[number];
  install(unit.*kind);
  const bool is_values = kind == &Unit::values, is_backward = context().leaf_writer;
  if (!is_backward && (unit.is_block || !is_values)) {
    (is_values ? last_values_ : last_masters_) = number;
    if (!context().after_op) context().after_op = this;
  }
  if (!is_values) return;
  if (is_backward) prefetch(number + 1);
  else if (number > 0) prefetch(number - 1);
}

void ShardedParameters::prefetch(std::size_t number) {
  if (number >= units_.size() || !units_[number].is_block) return;
  Block& block = units_[number].values;
  if (!is_here(block) && !block.arriving.defined()) begin(block);
}

void ShardedParameters::begin(Block& block) {
  const NoGrad unrecorded;
  const backend::PassScope observed("communication");
  block.arriving = empty(block.whole.shape(), block.whole.dtype(), block.whole.device());
  block.work = group_.all_gather(block.arriving, block.own);
}

void ShardedParameters::install(Block& block) {
  if (!block.arriving.defined()) begin(block);
  {
    const backend::PassScope observed("communication");
    block.work.wait();
  }
  FlatStorage& storage = storage_of(block);
  storage.take(block.arriving);
  block.arriving = {};
}

void ShardedParameters::release(Block& block) {
  if (is_kept_ || !block.whole.defined()) return;
  if (block.arriving.defined()) {
    block.work.wait();
    block.arriving = {};
  }
  FlatStorage& storage = storage_of(block);
  if (!storage.is_here()) return;
  if (storage.version() != block.version) {
    const NoGrad unrecorded;
    copy_(block.own, part_of(block.whole, group_));
    block.version = storage.version();
  }
  storage.free_until_fetched();
}

void ShardedParameters::begin_gradients(std::size_t unit) { prefetch(unit + 1); }

void ShardedParameters::after_op() {
  for (std::size_t i = 0; i < units_.size(); ++i) {
    if (units_[i].is_block && i != last_values_ && is_here(units_[i].values)) release(units_[i].values);
    if (i != last_masters_ && is_here(units_[i].masters)) release(units_[i].masters);
  }
}

void ShardedParameters::release_all() {
  for (Unit& unit : units_) {
    release(unit.values);
    release(unit.masters);
  }
}

void ShardedParameters::note_update() {
  for (Unit& unit : units_)
    for (Block* block : {&unit.values, &unit.masters})
      if (block->whole.defined()) {
        storage_of(*block).bump_version();
        block->version = storage_of(*block).version();
      }
}

void ShardedParameters::keep() {
  for (Unit& unit : units_)
    if (!is_here(unit.values)) install(unit.values);
  is_kept_ = true;
}

}  // namespace tern::dist
