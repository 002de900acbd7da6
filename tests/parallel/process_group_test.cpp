// Collectives: each dtype, op, size and number of ranks against sums made here; the same bits on all ranks; failures that end on every
// rank.
#include "parallel/process_group.h"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <mutex>

#include "ops/factory.h"
#include "ops/view.h"
#include "ranks.h"

namespace tern::parallel {

using test::check_none, test::Rank, test::run_ranks;

namespace {

/// Element i of rank r's tensor: a small whole number, exact in every dtype.
double element(int rank, std::int64_t i) { return static_cast<double>((i * 7 + rank * 3) % 11); }

/// On the device of the group.
Tensor input(const Rank& rank, std::int64_t count, DType dtype) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(element(rank.environment.rank, i));
  return to(cast(Tensor::from(values, {count}), dtype), rank.group->device());
}

double reduced(ReduceOp op, int size, std::int64_t i) {
  double result = element(0, i);
  for (int rank = 1; rank < size; ++rank) {
    const double x = element(rank, i);
    result = op == ReduceOp::max ? std::max(result, x) : op == ReduceOp::min ? std::min(result, x) : result + x;
  }
  return op == ReduceOp::mean ? result / size : result;
}

constexpr DType dtypes[] = {DType::f32, DType::f64, DType::bf16, DType::f16, DType::i32, DType::i64, DType::u8};
constexpr std::int64_t sizes[] = {0, 1, 3, 31, 1025, 70'001};

/// Throws for an element of x that is not value(i): a rank's thread cannot use the macros of a test.
template <class F>
void expect(const std::string& what, const Tensor& x, F value) {
  const auto values = cast(x, DType::f64).to_vector<double>();
  for (std::size_t i = 0; i < values.size(); ++i)
    if (const double want = value(static_cast<std::int64_t>(i)); values[i] != want)
      throw Error(fmt::format("{}: element {} is {} and not {}", what, i, values[i], want));
}

}  // namespace

TEST_CASE("all_reduce gives every rank the sum, mean, maximum and minimum", "[ranks]") {
  for (int ranks : {1, 2, 3, 4})
    check_none(run_ranks(ranks, [&](Rank& rank) {
      for (DType dtype : dtypes)
        for (std::int64_t count : sizes)
          for (ReduceOp op : {ReduceOp::sum, ReduceOp::mean, ReduceOp::max, ReduceOp::min}) {
            if (op == ReduceOp::mean && (!is_floating(dtype) || ranks == 3)) continue;  // thirds are not exact
            const Tensor x = input(rank, count, dtype);
            rank.group->all_reduce(x, op).wait();
            expect(fmt::format("{} of {} elements, op {}", name(dtype), count, int(op)), x,
                   [&](std::int64_t i) { return reduced(op, ranks, i); });
          }
    }));
}

TEST_CASE("Sums that are rounded are the same bits on all ranks and in every run") {
  for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    std::mutex mutex;
    std::vector<std::vector<double>> found;
    for (int run = 0; run < 2; ++run)
      check_none(run_ranks(4, [&](Rank& rank) {
        std::vector<double> values;
        for (int i = 0; i < 70'001; ++i) values.push_back(std::sin(i * (1.0 + rank.environment.rank)));
        const Tensor x = cast(Tensor::from(values, {70'001}), dtype);
        rank.group->all_reduce(x, ReduceOp::mean).wait();
        const std::lock_guard lock(mutex);
        found.push_back(cast(x, DType::f64).to_vector<double>());
      }));
    REQUIRE(found.size() == 8);
    for (const std::vector<double>& each : found) CHECK((each == found[0]));
    double worst = 0;
    for (int i = 0; i < 70'001; ++i) {
      double mean = 0;
      for (int rank = 0; rank < 4; ++rank) mean += std::sin(i * (1.0 + rank)) / 4;
      worst = std::max(worst, std::abs(mean - found[0][static_cast<std::size_t>(i)]));
    }
    // Inputs and three sums, each rounded: five roundings of numbers up to 4, then a quarter of them.
    const double eps = dtype == DType::f32 ? 0x1p-24 : dtype == DType::bf16 ? 0x1p-8 : 0x1p-11;
    CHECK(worst < 5 * eps);
  }
}

TEST_CASE("broadcast, reduce_scatter and all_gather move parts, also within one tensor", "[ranks]") {
  for (int ranks : {1, 2, 3, 4})
    check_none(run_ranks(ranks, [&](Rank& rank) {
      const int own = rank.environment.rank;
      const Device device = rank.group->device();
      for (DType dtype : dtypes)
        for (std::int64_t count : {std::int64_t{0}, std::int64_t{1}, std::int64_t{5}, std::int64_t{1025}}) {
          const std::string what = fmt::format("{} of {} elements", name(dtype), count);
          const auto own_part_of = [&](const Tensor& x) { return slice(x, 0, own * count, (own + 1) * count); };
          const Tensor sent = input(rank, count, dtype);
          rank.group->broadcast(sent, ranks - 1).wait();
          expect("broadcast " + what, sent, [&](std::int64_t i) { return element(ranks - 1, i); });

          const Tensor whole = input(rank, count * ranks, dtype), part = empty({count}, dtype, device);
          rank.group->reduce_scatter(part, whole).wait();
          expect("reduce_scatter " + what, part, [&](std::int64_t i) { return reduced(ReduceOp::sum, ranks, own * count + i); });
          const Tensor reused = input(rank, count * ranks, dtype);
          rank.group->reduce_scatter(own_part_of(reused), reused, ReduceOp::max).wait();
          expect("reduce_scatter in place " + what, own_part_of(reused),
                 [&](std::int64_t i) { return reduced(ReduceOp::max, ranks, own * count + i); });

          const auto gathered = [&](std::int64_t i) { return element(static_cast<int>(i / count), i % count); };
          const Tensor all = empty({count * ranks}, dtype, device), joined = full({count * ranks}, 0, dtype, device);
          rank.group->all_gather(all, input(rank, count, dtype)).wait();
          expect("all_gather " + what, all, gathered);
          copy_(own_part_of(joined), input(rank, count, dtype));
          rank.group->all_gather(joined, own_part_of(joined)).wait();
          expect("all_gather in place " + what, joined, gathered);
          rank.group->barrier();
        }
    }));
}

TEST_CASE("Collectives of more than the memory that an engine has for them", "[ranks]") {
  const std::int64_t part = test::is_launched() ? 5'000'008 : 5'008;
  for (int ranks : {2, 3})
    check_none(run_ranks(ranks, [&](Rank& rank) {
      const int own = rank.environment.rank;
      for (const DType dtype : {DType::f32, DType::bf16}) {
        const Tensor x = input(rank, part * ranks - 3, dtype);
        for (int i = 0; i < 2; ++i) {
          const Tensor y = clone(x);
          rank.group->all_reduce(y).wait();
          expect("all_reduce", y, [&](std::int64_t k) { return reduced(ReduceOp::sum, ranks, k); });
        }
        const Tensor whole = input(rank, part * ranks, dtype), scattered = zeros({part}, dtype, rank.group->device()),
                     gathered = zeros({part * ranks}, dtype, rank.group->device());
        rank.group->reduce_scatter(scattered, whole, ReduceOp::max).wait();
        expect("reduce_scatter", scattered, [&](std::int64_t k) { return reduced(ReduceOp::max, ranks, part * own + k); });
        rank.group->all_gather(gathered, scattered).wait();
        expect("all_gather", gathered, [&](std::int64_t k) { return reduced(ReduceOp::max, ranks, k); });
      }
    }));
}

TEST_CASE("Collectives run in the order of the calls, beside the thread, and hold their tensors", "[ranks]") {
  check_none(run_ranks(3, [](Rank& rank) {
    const Device device = rank.group->device();
    std::vector<Work> works;
    std::vector<Tensor> kept;
    for (int i = 0; i < 20; ++i) {
      kept.push_back(full({1000 + i}, rank.environment.rank, DType::f64, device));
      works.push_back(rank.group->all_reduce(kept.back()));
      if (i % 2) works.push_back(rank.group->all_reduce(full({50'000}, 1, DType::f32, device)));  // a tensor that nobody else holds
    }
    for (Work& work : works) work.wait();
    for (const Tensor& x : kept)
      for (double value : x.to_vector<double>())
        if (value != 3) throw Error("a sum is wrong");
    Work none;
    none.wait();
    if (!none.is_done() || !works[0].is_done()) throw Error("a work that is done says it is not");
  }));
}

TEST_CASE("A thread may wait for collectives while another begins more") {
  check_none(run_ranks(2, [](Rank& rank) {
    constexpr int count = 1000;
    std::vector<Work> works(count);
    std::atomic<int> begun = 0;
    std::thread waiting([&] {
      for (int i = 0; i < count; ++i) {
        while (begun <= i) std::this_thread::yield();
        works[static_cast<std::size_t>(i)].wait();
      }
    });
    std::vector<Tensor> sums;
    for (int i = 0; i < count; ++i) {
      sums.push_back(full({3}, i));
      works[static_cast<std::size_t>(i)] = rank.group->all_reduce(sums.back());
      ++begun;
    }
    waiting.join();
    for (int i = 0; i < count; ++i)
      if (sums[static_cast<std::size_t>(i)].to_vector<float>()[2] != static_cast<float>(2 * i)) throw Error("a sum is wrong");
  }));
}

TEST_CASE("A rank that is gone makes the others' collectives errors, and no hang") {
  const auto errors = run_ranks(3,
                                [](Rank& rank) {
                                  rank.group->barrier();
                                  if (rank.environment.rank == 1) return;  // its group ends
                                  for (int i = 0; i < 100; ++i) rank.group->all_reduce(zeros({1000})).wait();
                                },
                                {.timeout = 5});
  CHECK(errors[1].empty());
  for (std::size_t i : {0, 2}) {
    CHECK(errors[i].find("[parallel] all_reduce on rank " + std::to_string(i) + " of 3 failed: ") == 0);
    CHECK(errors[i].find('\n') == std::string::npos);
  }
}

TEST_CASE("A rank that leaves by an exception is named to the others") {
  const auto errors = run_ranks(3, [](Rank& rank) {
    rank.group->barrier();
    if (rank.environment.rank == 1) throw Error("out of luck");
    for (;;) rank.group->all_reduce(zeros({1000})).wait();
  });
  CHECK(errors[1] == "out of luck");
  for (std::size_t i : {0, 2})
    CHECK(errors[i] == "[parallel] all_reduce on rank " + std::to_string(i) + " of 3 failed: rank 1 has given up");
}

TEST_CASE("A rank that dies within a message ends the others' wait for it at once, and not at the timeout") {
  constexpr std::int64_t bytes = std::int64_t{1} << 27, some = std::int64_t{1} << 20;
  for (const int root : {0, 1}) {
    const tern::test::TempDirectory directory;
    const Tensor x = empty({bytes}, DType::u8);
    auto* const data = x.view().as<volatile std::uint8_t>();
    for (std::int64_t i = 0; i < bytes; i += some) data[i] = 0;
    const auto group_of = [&](int rank) {
      return make_process_group({.rank = rank, .size = 2, .local_rank = rank, .local_size = 2},
                                std::make_shared<FileStore>(directory / "store"), cpu, "world", {.timeout = 15});
    };
    const auto send = [&](ProcessGroup& group) {
      if (group.rank() == root)
        for (std::int64_t i = 0; i < bytes; i += some) data[i] = 1;
      group.broadcast(x, root).wait();
    };
    const pid_t other = ::fork();
    // The other rank is killed by the one that sees the message come.
    const auto kill_when_some_is_here = [&] {
      while (data[some] == 0) std::this_thread::yield();
      ::kill(root == 0 ? ::getpid() : other, SIGKILL);
    };
    if (other == 0) {
      const auto group = group_of(1);
      if (root == 0) std::thread(kill_when_some_is_here).detach();
      message_of([&] { send(*group); });
      ::_exit(0);
    }
    const auto group = group_of(0);
    std::thread killer;
    if (root == 1) killer = std::thread(kill_when_some_is_here);
    const auto start = std::chrono::steady_clock::now();
    CHECK(message_of([&] { send(*group); }) == "[parallel] broadcast on rank 0 of 2 failed: rank 1 has ended");
    CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(8));
    if (root == 1) killer.join();
    ::waitpid(other, nullptr, 0);
  }
}

TEST_CASE("A rank that is late is an error on the others after the timeout, and on it as well") {
  const auto start = std::chrono::steady_clock::now();
  const auto errors = run_ranks(2,
                                [](Rank& rank) {
                                  rank.group->barrier();
                                  const auto be_late = [&](int milliseconds) {
                                    if (rank.environment.rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
                                  };
                                  be_late(600);
                                  rank.group->all_reduce(zeros({10})).wait();
                                  be_late(3500);
                                  rank.group->barrier();
                                },
                                {.timeout = 1.5});
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(10));
  CHECK(errors[0].find("[parallel] barrier on rank 0 of 2 failed: ") == 0);
  CHECK(errors[1].find("[parallel] barrier on rank 1 of 2 failed: ") == 0);
}

TEST_CASE("After a failure every later collective says the same") {
  const auto errors = run_ranks(2,
                                [](Rank& rank) {
                                  rank.group->barrier();
                                  if (rank.environment.rank == 1) return;
                                  const std::string first = message_of([&] {
                                    for (;;) rank.group->all_reduce(zeros({1000})).wait();
                                  });
                                  const std::string second = message_of([&] { rank.group->broadcast(zeros({3})).wait(); });
                                  if (first != second || first.empty())
                                    throw Error("expected one message but got \"" + first + "\" and \"" + second + "\"");
                                },
                                {.timeout = 5});
  check_none(errors);
}

TEST_CASE("Ranks that never come are an error at the start") {
  const tern::test::TempDirectory directory;
  const LaunchEnvironment environment{.rank = 0, .size = 2};
  CHECK(contains(message_of([&] {
                   make_process_group(environment, std::make_shared<FileStore>(directory / "store"), cpu, "world", {.timeout = 0.3});
                 }),
                 "within 0.3 s: have all ranks been started"));
}

TEST_CASE("Collectives refuse what they cannot take") {
  const auto group = make_process_group({}, nullptr, cpu);
  CHECK(std::string(group->engine()) == "local");
  CHECK(contains(message_of([&] { group->all_reduce({}).wait(); }), "expected a tensor but got none"));
  CHECK(contains(message_of([&] { group->all_reduce(transpose(zeros({2, 3}), 0, 1)).wait(); }), "contiguous"));
  CHECK(contains(message_of([&] { group->all_reduce(zeros({2}, DType::boolean)).wait(); }), "bool"));
  CHECK(contains(message_of([&] { group->all_reduce(zeros({2}, DType::i64), ReduceOp::mean).wait(); }), "mean"));
  CHECK(contains(message_of([&] { group->all_reduce(zeros({2}, DType::i64), ReduceOp::mean).wait(); }), "i64"));
  CHECK(contains(message_of([&] { group->broadcast(zeros({2}), 1).wait(); }), "[0, 1)"));
  CHECK(contains(message_of([&] { group->all_gather(zeros({2}), zeros({3})).wait(); }), "1 equal parts"));
  CHECK(contains(message_of([&] { group->reduce_scatter(zeros({2}), zeros({2}, DType::f64)).wait(); }), "f64"));
}

}  // namespace tern::parallel
