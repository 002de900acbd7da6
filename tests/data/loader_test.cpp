// Loader: the same batches for any number of workers, after a resume, and beside errors.
#include "data/loader.h"

#include <atomic>
#include <chrono>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>

#include "catch.h"
#include "message.h"
#include "ops/factory.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/view.h"

namespace tern::data {

namespace {

using Ids = std::vector<std::int64_t>;

/// Example i is [10 i, 10 i + 1] and a number that is drawn.
struct Toy {
  std::int64_t count = 0;
  std::int64_t size() const { return count; }
  Tensors operator[](std::int64_t i) const { return {Tensor::from({10 * i, 10 * i + 1}, {2}), rand({}, 0, 1)}; }
};

/// The ids of all batches of some epochs, -1 behind each batch and -2 behind each epoch.
Ids read(Loader& loader, int epochs, std::vector<float>* drawn = nullptr) {
  Ids result;
  for (int epoch = 0; epoch < epochs; ++epoch) {
    while (const auto batch = loader.next()) {
      for (const std::int64_t id : (*batch)[0].to_vector<std::int64_t>()) result.push_back(id);
      if (drawn)
        for (const float x : (*batch)[1].to_vector<float>()) drawn->push_back(x);
      result.push_back(-1);
    }
    result.push_back(-2);
  }
  return result;
}

}  // namespace

TEST_CASE("A loader gives every example once an epoch, in its order") {
  Loader plain(Toy{5}, {.batch_size = 2, .shuffle = false});
  CHECK(read(plain, 1) == Ids{0, 1, 10, 11, -1, 20, 21, 30, 31, -1, 40, 41, -1, -2});
  CHECK(plain.batches_per_epoch() == 3);
  Loader dropped(Toy{5}, {.batch_size = 2, .shuffle = false, .drop_last = true});
  CHECK(read(dropped, 2) == Ids{0, 1, 10, 11, -1, 20, 21, 30, 31, -1, -2, 0, 1, 10, 11, -1, 20, 21, 30, 31, -1, -2});

  Loader shuffled(Toy{101}, {.batch_size = 8, .seed = 3});
  std::vector<Ids> epochs;
  for (int epoch = 0; epoch < 2; ++epoch) {
    Ids ids;
    for (const std::int64_t id : read(shuffled, 1))
      if (id >= 0 && id % 10 == 0) ids.push_back(id / 10);
    epochs.push_back(ids);
    CHECK(std::set<std::int64_t>(ids.begin(), ids.end()).size() == 101);
    CHECK(ids.size() == 101);
    CHECK_FALSE(std::is_sorted(ids.begin(), ids.end()));
  }
  CHECK(epochs[0] != epochs[1]);
  Loader other(Toy{101}, {.batch_size = 8, .seed = 4});
  CHECK(read(other, 1) != read(shuffled, 1));
}

TEST_CASE("Any number of workers gives the same batches, with the same random numbers") {
  for (const std::int64_t size : {1, 7, 40}) {
    std::vector<float> drawn;
    Loader alone(Toy{size}, {.batch_size = 3, .seed = 5, .workers = 0});
    manual_seed(9);
    const float before = rand({}, 0, 1).item();
    const Ids wanted = read(alone, 3, &drawn);
    if (size > 1) CHECK(std::set<float>(drawn.begin(), drawn.end()).size() > 3 * std::size_t(size) - 3);
    for (const int workers : {1, 2, 5})
      for (const int prefetch : {1, 2, 9}) {
        std::vector<float> own;
        Loader loader(Toy{size}, {.batch_size = 3, .seed = 5, .workers = workers, .prefetch = prefetch});
        CHECK(read(loader, 3, &own) == wanted);
        CHECK(own == drawn);
      }
    manual_seed(9);
    CHECK(rand({}, 0, 1).item() == before);
    // The caller's own random numbers are not the loader's.
    manual_seed(9);
    rand({}, 0, 1);
    const float next = rand({}, 0, 1).item();
    manual_seed(9);
    rand({}, 0, 1);
    alone.next();
    CHECK(rand({}, 0, 1).item() == next);
  }
}

TEST_CASE("A loader goes on from a saved position, wherever that is") {
  for (const bool drop_last : {false, true}) {
    const LoaderOptions options{.batch_size = 3, .seed = 8, .drop_last = drop_last, .workers = 2};
    for (int taken = 0; taken < 9; ++taken) {
      Loader first(Toy{7}, options);
      for (int i = 0; i < taken; ++i) first.next();  // the ends of epochs too
      const Tensor state = first.state();
      Loader second(Toy{7}, options);
      second.next();
      second.load_state(state);
      CHECK(second.position() == first.position());
      CHECK(read(second, 3) == read(first, 3));
    }
  }
  Loader loader(Toy{7}, {.batch_size = 3, .workers = 2});
  CHECK(loader.position() == LoaderPosition{0, 0});
  loader.next();
  CHECK(loader.position() == LoaderPosition{0, 3});
  loader.next();
  loader.next();
  CHECK(loader.position() == LoaderPosition{0, 7});
  CHECK_FALSE(loader.next().has_value());
  CHECK(loader.position() == LoaderPosition{1, 0});
}

TEST_CASE("A loader refuses a state or a position that is not its own") {
  Loader loader(Toy{7}, {.batch_size = 3, .seed = 1});
  CHECK(message_of([&] { loader.load_state(Loader(Toy{8}, {.batch_size = 3, .seed = 1}).state()); }) ==
        "[Loader] expected the state of a loader with 7 examples but got 8");
  CHECK(message_of([&] { loader.load_state(Loader(Toy{7}, {.batch_size = 2, .seed = 1}).state()); }) ==
        "[Loader] expected the state of a loader with 3 examples a batch but got 2");
  CHECK(message_of([&] { loader.load_state(Loader(Toy{7}, {.batch_size = 3, .seed = 2}).state()); }) ==
        "[Loader] expected the state of a loader with 1 as the seed but got 2");
  CHECK_THROWS_AS(loader.load_state(zeros({5})), Error);
  for (const LoaderPosition position : {LoaderPosition{-1, 0}, {0, -3}, {0, 2}, {0, 8}, {0, 9}})
    CHECK_THROWS_AS(loader.seek(position), Error);
  loader.seek({4, 7});
  CHECK_FALSE(loader.next().has_value());
  CHECK(loader.position() == LoaderPosition{5, 0});
  CHECK_THROWS_AS(Loader(Toy{7}, {.batch_size = 0}), Error);
  CHECK_THROWS_AS(Loader(Toy{7}, {.workers = -1}), Error);
  CHECK_THROWS_AS(Loader(Toy{7}, {.prefetch = 0}), Error);
}

TEST_CASE("An error of a worker reaches the caller at its batch, and leaves the position before it") {
  for (const int workers : {0, 1, 4}) {
    std::atomic<bool> is_broken = true;
    Loader loader(20,
                  [&](std::span<const std::int64_t> indices) -> Tensors {
                    if (indices[0] == 6 && is_broken) throw std::runtime_error("example 6 is broken");
                    return {Tensor::from(Ids(indices.begin(), indices.end()), {static_cast<std::int64_t>(indices.size())})};
                  },
                  {.batch_size = 2, .shuffle = false, .workers = workers, .prefetch = 8});
    for (int i = 0; i < 3; ++i) CHECK((*loader.next())[0].to_vector<std::int64_t>()[0] == 2 * i);
    for (int i = 0; i < 2; ++i) {
      CHECK(message_of<std::exception>([&] { loader.next(); }) == "example 6 is broken");
      CHECK(loader.position() == LoaderPosition{0, 6});
    }
    is_broken = false;
    CHECK((*loader.next())[0].to_vector<std::int64_t>() == Ids{6, 7});
    CHECK((*loader.next())[0].to_vector<std::int64_t>() == Ids{8, 9});
  }
}

TEST_CASE("Workers make no more batches than prefetch says, and end when the loader does") {
  std::atomic<int> made = 0;
  const auto started = std::chrono::steady_clock::now();
  {
    Loader loader(1000000,
                  [&](std::span<const std::int64_t> indices) -> Tensors {
                    std::this_thread::sleep_for(std::chrono::milliseconds(2));
                    ++made;
                    return {Tensor::from(Ids(indices.begin(), indices.end()), {static_cast<std::int64_t>(indices.size())})};
                  },
                  {.batch_size = 1, .shuffle = false, .workers = 3, .prefetch = 4});
    loader.next();
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (made < 5 && std::chrono::steady_clock::now() < limit) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    CHECK(made == 5);  // one taken, four ahead
  }
  CHECK(made == 5);
  CHECK(std::chrono::steady_clock::now() - started < std::chrono::seconds(10));
}

TEST_CASE("A loader of nothing has epochs without batches") {
  Loader empty(Toy{0}), small(Toy{3}, {.batch_size = 4, .drop_last = true});
  for (Loader* loader : {&empty, &small}) {
    CHECK(loader->batches_per_epoch() == 0);
    CHECK_FALSE(loader->next().has_value());
    CHECK(loader->position() == LoaderPosition{1, 0});
  }
}

TEST_CASE("Examples of different forms are an error that says which") {
  const std::vector<Tensors> shapes{{zeros({2})}, {zeros({3})}}, parts{{zeros({2})}, {zeros({2}), zeros({2})}};
  CHECK(message_of([&] { stack_examples(shapes); }) ==
        "[Loader] expected examples of one form but tensor 0 is f32 (2,) in the first of the batch and f32 (3,) in number 1");
  CHECK(message_of([&] { stack_examples(parts); }) == "[Loader] expected 1 tensors in each example but got 2 in number 1 of the batch");
}

TEST_CASE("Batches on a GPU are those on the CPU, while the device is behind", "[cuda]") {
  Loader here(Toy{50}, {.batch_size = 4, .seed = 2}),
      there(Toy{50}, {.batch_size = 4, .seed = 2, .workers = 3, .prefetch = 2, .device = cuda()});
  const Ids wanted = read(here, 4);
  Tensor busy = ones({512, 512}, DType::f32, cuda());
  Ids got;
  std::vector<Tensor> batches;
  for (int epoch = 0; epoch < 4; ++epoch) {
    while (auto batch = there.next()) {
      for (int i = 0; i < 20; ++i) busy = busy * 1.001 + 0.1;
      CHECK((*batch)[0].device() == cuda());
      batches.push_back((*batch)[0]);
    }
    batches.push_back({});
  }
  for (const Tensor& batch : batches) {
    if (batch.defined())
      for (const std::int64_t id : batch.to_vector<std::int64_t>()) got.push_back(id);
    got.push_back(batch.defined() ? -1 : -2);
  }
  CHECK(got == wanted);
}

}  // namespace tern::data
