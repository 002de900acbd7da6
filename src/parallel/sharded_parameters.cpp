#include <algorithm>
#include <utility>

#include "autodiff/autograd_state.h"
#include "autodiff/node.h"
#include "autodiff/parameter_buffer.h"
#include "backend/observer.h"
#include "ops/autocast.h"
#include "ops/factory.h"
#include "ops/view.h"
#include "parallel/data_parallel_state.h"
#include "tensor/sizes.h"

namespace tern::parallel {

static Tensor part_of(const Tensor& x, const ProcessGroup& group) {
  const std::int64_t part = x.numel() / group.size();
  return elements_of(x, part * group.rank(), part * (group.rank() + 1));
}

FlatStorage& ShardedParameters::storage_of(const Block& block) { return *flat_storage(block.whole); }
bool ShardedParameters::is_here(const Block& block) { return block.whole.defined() && storage_of(block).is_here(); }

std::size_t ShardedParameters::add(const Tensors& parameters, bool is_block) {
  const NoGrad unrecorded;
  const DType dtype = parameters[0].dtype();
  const Device device = group_.device();
  const std::int64_t vectors = padded_size(1, dtype) * group_.size();
  const std::int64_t count = round_up(padded_size(parameters, dtype), vectors);

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
  Unit& unit = units_.emplace_back();
  unit.parameters = parameters;
  unit.is_block = is_block;
  unit.values.own = clone(part_of(flat, group_));
  unit.values.whole = freed(count / group_.size(), dtype, number, &Unit::values);
  if (masters.defined()) {
    unit.masters.own = clone(part_of(masters, group_));
    unit.masters.whole = freed(count / group_.size(), DType::f32, number, &Unit::masters);
  }
  const Tensors here = windows_of(unit.values.whole, parameters, dtype);
  for (std::size_t i = 0; i < parameters.size(); ++i) nn::detail::rebind(parameters[i], here[i]);
  FlatStorage& storage = storage_of(unit.values);
  storage.masters = unit.masters.whole;
  storage.masters_version = unit.values.version = storage.version();
  return number;
}

/// Gathers a block of memory. In forward it takes the place of other blocks, but for those of the units for which `stays` is true.
template <class F>
void ShardedParameters::gather(std::size_t number, Kind kind, const F& stays) {
  Unit& unit = units_[number];
  if (is_here(unit.*kind)) return;
  if (context().recording)
    fail("DataParallel",
         "expected a step as written, but a graph is being recorded: the memory of sharded parameters is at other addresses in each step");
  const bool is_values = kind != &Unit::masters, is_backward = LeafWriter::of_thread().passes > 0;
  if (!is_backward && (unit.is_block || !is_values))
    for (std::size_t i = 0; i < units_.size(); ++i) {
      if (stays(i)) continue;
      if (units_[i].is_block) release(units_[i].values), release(units_[i].lowered);
      release(units_[i].masters);
    }
  install(unit, kind);
  if (!is_values) return;
  if (unit.is_block) block_kind_ = kind;
  if (is_backward) prefetch(number + 1);
  else if (number > 0) prefetch(number - 1);
}

/// A tensor of the elements of all ranks' parts, whose memory is freed.
Tensor ShardedParameters::freed(std::int64_t own_count, DType dtype, std::size_t unit, Kind kind) {
  const Tensor whole = flat_freed(own_count * group_.size(), dtype, group_.device());
  flat_storage(whole)->gather = [weak = weak_from_this(), unit, kind] {
    if (const auto self = weak.lock()) self->gather(unit, kind, [](std::size_t) { return true; });
  };
  return whole;
}

std::string block_of(const std::string& path) {
  for (std::size_t first = 0, end = 0; end < path.size(); first = end + 1) {
    end = std::min(path.find('.', first), path.size());
    const bool is_number = end > first && path.find_first_not_of("0123456789", first) >= end;
    if (is_number && end < path.size()) return path.substr(0, end + 1);
  }
  return "";
}

void ShardedParameters::wrap(nn::Module& module) {
  struct Members final : nn::Visitor {
    void on_module(const std::string& path, nn::Module& each) override { modules.emplace_back(path.empty() ? path : path + ".", &each); }
    void on_parameter(const std::string& path, Tensor& x) override { parameters.push_back({path, x}); }
    std::vector<std::pair<std::string, nn::Module*>> modules;
    std::vector<NamedTensor> parameters;
  } members;
  members.walk(module);
  for (const auto& [path, each] : members.modules) {
    std::set<std::size_t> needed;
    for (const NamedTensor& x : members.parameters)
      for (std::size_t i = 0; i < units_.size(); ++i)
        if (units_[i].values.whole.impl().storage == x.tensor.impl().storage && x.name.starts_with(path) &&
            (!units_[i].is_block || path.starts_with(block_of(x.name))))
          needed.insert(i);
    if (needed.empty()) continue;
    each->before_forward = [weak = weak_from_this(), needed] {
      if (const auto self = weak.lock(); self && !self->is_kept_) self->begin_forward(needed);
    };
  }
}

void ShardedParameters::begin_forward(const std::set<std::size_t>& needed) {
  Autocast* const autocast = context().autocast;
  const auto stays = [&](std::size_t unit) { return needed.contains(unit); };
  for (const std::size_t number : needed) {
    Unit& unit = units_[number];
    if (!autocast || !unit.is_block || unit.values.whole.dtype() != DType::f32) {
      gather(number, &Unit::values, stays);
      continue;
    }
    if (!unit.lowered.whole.defined() || unit.lowered.whole.dtype() != autocast->dtype()) {
      release(unit.lowered);
      unit.lowered.whole = freed(unit.values.own.numel(), autocast->dtype(), number, &Unit::lowered);
    }
    gather(number, &Unit::lowered, stays);
    const Tensors copies = windows_of(unit.lowered.whole, unit.parameters, DType::f32);
    for (std::size_t i = 0; i < copies.size(); ++i) autocast->use(unit.parameters[i], copies[i]);
  }
}

void ShardedParameters::gather(const Tensors& xs) {
  std::vector<std::pair<std::size_t, Kind>> wanted;
  for (std::size_t i = 0; i < units_.size(); ++i)
    for (const Kind kind : {&Unit::values, &Unit::masters}) {
      const Tensor& whole = (units_[i].*kind).whole;
      if (whole.defined() && std::any_of(xs.begin(), xs.end(), [&](const Tensor& x) { return x.impl().storage == whole.impl().storage; }))
        wanted.emplace_back(i, kind);
    }
  for (const auto& [unit, kind] : wanted)
    gather(unit, kind,
           [&](std::size_t i) { return std::any_of(wanted.begin(), wanted.end(), [&](const auto& w) { return w.first == i; }); });
}

void ShardedParameters::prefetch(std::size_t number) {
  if (number >= units_.size() || !units_[number].is_block) return;
  const Block& block = units_[number].*block_kind_;
  if (block.whole.defined() && !is_here(block) && !block.arriving.defined()) begin(units_[number], block_kind_);
}

void ShardedParameters::begin(Unit& unit, Kind kind) {
  const NoGrad unrecorded;
  const backend::PassScope observed("communication");
  Block& block = unit.*kind;
  if (kind == &Unit::lowered) {
    write_back_edits(unit.values);
    block.own = cast(unit.values.own, block.whole.dtype());
  }
  block.arriving = empty(block.whole.shape(), block.whole.dtype(), block.whole.device());
  block.work = group_.all_gather(block.arriving, block.own);
}

void ShardedParameters::install(Unit& unit, Kind kind) {
  Block& block = unit.*kind;
  if (!block.arriving.defined()) begin(unit, kind);
  {
    const backend::PassScope observed("communication");
    block.work.wait();
  }
  block.work = {};
  if (kind == &Unit::lowered) block.own = {};
  storage_of(block).take(block.arriving);
  block.arriving = {};
}

/// Copies elements that were written to gathered values or masters back to the rank's part.
void ShardedParameters::write_back_edits(Block& block) {
  const FlatStorage& storage = storage_of(block);
  if (!block.own.defined() || !storage.is_here() || storage.version() == block.version) return;
  const NoGrad unrecorded;
  copy_(block.own, part_of(block.whole, group_));
  block.version = storage.version();
}

void ShardedParameters::release(Block& block) {
  if (is_kept_ || !block.whole.defined()) return;
  if (block.arriving.defined()) {
    block.work.wait();
    block.work = {};
    block.arriving = {};
  }
  if (!is_here(block)) return;
  write_back_edits(block);
  storage_of(block).free();
}

void ShardedParameters::end_gradients(std::size_t unit) {
  release(units_[unit].values);
  release(units_[unit].lowered);
}

void ShardedParameters::release_all() {
  for (Unit& unit : units_) {
    for (Block* const block : {&unit.values, &unit.masters, &unit.lowered}) release(*block);
  }
}

void ShardedParameters::note_update() {
  for (Unit& unit : units_)
    for (Block* block : {&unit.values, &unit.masters, &unit.lowered})
      if (block->whole.defined()) {
        storage_of(*block).bump_version();
        block->version = storage_of(*block).version();
      }
}

void ShardedParameters::keep() {
  for (Unit& unit : units_)
    if (!is_here(unit.values)) install(unit, &Unit::values);
  is_kept_ = true;
}

}  // namespace tern::parallel
