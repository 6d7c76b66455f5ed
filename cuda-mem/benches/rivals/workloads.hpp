// The workloads of README.md beside this file, over any allocator; the same loops in Rust are in
// ../common/workloads.
//
// An allocator is a type with
//     void* allocate(cudaStream_t stream, std::size_t bytes);             // throws if it cannot
//     void free(cudaStream_t stream, void* address, std::size_t bytes);
//     std::uint64_t reserved_peak();                                      // bytes since it was new
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

inline void check(cudaError_t result) {
  if (result != cudaSuccess) throw std::runtime_error(cudaGetErrorString(result));
}

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? std::nan("") : values[values.size() / 2];
}

// Random numbers

class Draws {
  std::uint64_t state;

 public:
  explicit Draws(std::uint64_t seed) : state(seed) {}
  std::uint64_t next() {
    state = state * 6364136223846793005u + 1;
    return state >> 33;
  }
};

// README.md has these numbers too, and a test of the Rust program reads them there.
inline void require_draws() {
  Draws draws(1);
  for (std::uint64_t expected : {740882966, 1616430695, 1708849955, 1669437588, 406334850, 276737754,
                                 1296416700, 672443628, 1438950452, 906079059})
    if (draws.next() != expected) throw std::logic_error("the generator is not that of README.md");
}

// How much is done

struct Effort {
  int pair_rounds, pairs, mixed_pairs, mixed_runs, busy_operations[2];
};
inline constexpr Effort kFull{101, 1000, 160'000, 3, {2000, 20'000}};
inline constexpr Effort kQuick{3, 50, 3200, 1, {64, 200}};

// One line of the outcome. What a workload does not measure is empty.

struct Row {
  std::string workload;
  int threads = 1;
  std::uint64_t operations = 0, planned = 0;
  std::optional<std::uint64_t> bytes = {}, asked = {}, reserved = {};
  std::optional<double> ns = {}, call_ns = {}, first_ns = {}, million = {};
  std::optional<std::string> stopped = {};
};

inline std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (unsigned char letter : text) {
    if (letter == '\n') break;  // the first line says it
    if (letter == '"' || letter == '\\') out += '\\';
    if (letter >= ' ') out += static_cast<char>(letter);
  }
  return out + "\"";
}

inline std::string json(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return std::isfinite(value) ? text : "null";
}
inline std::string json(std::uint64_t value) { return std::to_string(value); }
inline std::string json(const std::string& value) { return quoted(value); }
template <typename T>
std::string json(const std::optional<T>& value) {
  return value ? json(*value) : "null";
}

inline void print(const std::string& subject, const Row& row) {
  std::optional<double> ratio;
  if (row.reserved && row.asked) ratio = static_cast<double>(*row.reserved) / static_cast<double>(*row.asked);
  std::string line = "{\"subject\":" + quoted(subject) + ",\"workload\":" + quoted(row.workload) +
                     ",\"threads\":" + std::to_string(row.threads) +
                     ",\"operations\":" + json(row.operations) +
                     ",\"planned\":" + json(row.planned) + ",\"bytes\":" + json(row.bytes) +
                     ",\"ns\":" + json(row.ns) + ",\"call_ns\":" + json(row.call_ns) +
                     ",\"first_ns\":" + json(row.first_ns) +
                     ",\"million_pairs_per_second\":" + json(row.million) +
                     ",\"asked\":" + json(row.asked) + ",\"reserved\":" + json(row.reserved) +
                     ",\"ratio\":" + json(ratio) + ",\"stopped\":" + json(row.stopped) + "}";
  std::puts(line.c_str());
  std::fflush(stdout);
}

inline void print_error(const std::string& subject, const std::string& workload, const std::string& error) {
  std::string line = "{\"subject\":" + quoted(subject) + ",\"workload\":" + quoted(workload) +
                     ",\"error\":" + quoted(error) + "}";
  std::puts(line.c_str());
  std::fflush(stdout);
}

// Streams and threads

class Stream {
  cudaStream_t stream = nullptr;

 public:
  Stream() { check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)); }
  ~Stream() { cudaStreamDestroy(stream); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator cudaStream_t() const { return stream; }
  void synchronize() const { check(cudaStreamSynchronize(stream)); }
};

// Runs `work(thread, stream)` on each of so many threads, numbered from 1; the first failure of them is
// thrown when all have ended.
inline void on_threads(int threads, const std::function<void(int, const Stream&)>& work) {
  std::vector<std::unique_ptr<Stream>> streams;
  for (int i = 0; i < threads; i++) streams.push_back(std::make_unique<Stream>());
  std::vector<std::exception_ptr> failures(threads);
  std::vector<std::thread> workers;
  for (int i = 0; i < threads; i++)
    workers.emplace_back([&, i] {
      try {
        work(i + 1, *streams[i]);
      } catch (...) {
        failures[i] = std::current_exception();
      }
    });
  for (auto& worker : workers) worker.join();
  for (auto& failure : failures)
    if (failure) std::rethrow_exception(failure);
}

struct Block {
  void* address = nullptr;
  std::size_t bytes = 0;
};

// pairs

template <typename A>
void pairs(const std::function<std::unique_ptr<A>()>& make, const Effort& effort, const std::string& subject) {
  constexpr int kWarmUp = 10;
  for (std::size_t bytes : {std::size_t{256}, std::size_t{4} << 10, std::size_t{1} << 20, std::size_t{64} << 20}) {
    auto allocator = make();
    Stream stream;
    std::vector<double> rounds;
    for (int round = 0; round < kWarmUp + effort.pair_rounds; round++) {
      auto start = Clock::now();
      for (int pair = 0; pair < effort.pairs; pair++)
        allocator->free(stream, allocator->allocate(stream, bytes), bytes);
      if (round >= kWarmUp) rounds.push_back(seconds_since(start) * 1e9 / effort.pairs);
    }
    stream.synchronize();
    print(subject, {.workload = "pairs",
                    .operations = rounds.size() * effort.pairs,
                    .planned = rounds.size() * effort.pairs,
                    .bytes = bytes,
                    .ns = median(rounds)});
  }
}

// mixed

template <typename A>
class Mix {
  Draws draws;
  std::array<Block, 32> live{};

 public:
  explicit Mix(std::uint64_t seed) : draws(seed) {}

  void run(A& allocator, cudaStream_t stream, int pairs) {
    for (int pair = 0; pair < pairs; pair++) {
      Block& block = live[draws.next() % live.size()];
      std::size_t bytes = std::size_t{256} << draws.next() % 13;
      if (block.address) allocator.free(stream, block.address, block.bytes);
      block = {};
      block = {allocator.allocate(stream, bytes), bytes};
    }
  }

  void end(A& allocator, cudaStream_t stream) {
    for (Block& block : live)
      if (block.address) allocator.free(stream, block.address, block.bytes);
    live = {};
  }
};

// Allocates nothing.
struct Count {
  std::uint64_t live = 0, peak = 0;
  void* allocate(cudaStream_t, std::size_t bytes) {
    live += bytes;
    peak = std::max(peak, live);
    return this;
  }
  void free(cudaStream_t, void*, std::size_t bytes) { live -= bytes; }
};

template <typename A>
void mixed(const std::function<std::unique_ptr<A>()>& make, const Effort& effort, const std::string& subject) {
  constexpr int kWarmUp = 1000;
  for (int threads : {1, 16}) {
    int pairs = effort.mixed_pairs / threads;
    std::vector<double> millions;
    std::uint64_t reserved = 0, asked = 0;
    for (int run = 0; run < effort.mixed_runs; run++) {
      auto allocator = make();
      std::vector<double> times(threads);
      std::barrier start(threads);
      on_threads(threads, [&](int thread, const Stream& stream) {
        Mix<A> mix(thread);
        // A thread that fails must reach the barrier too, or the others would wait for ever.
        std::exception_ptr failure;
        try {
          mix.run(*allocator, stream, kWarmUp);
        } catch (...) {
          failure = std::current_exception();
        }
        start.arrive_and_wait();
        if (failure) std::rethrow_exception(failure);
        auto begin = Clock::now();
        mix.run(*allocator, stream, pairs);
        times[thread - 1] = seconds_since(begin);
        mix.end(*allocator, stream);
        stream.synchronize();
      });
      double slowest = *std::max_element(times.begin(), times.end());
      millions.push_back(threads * pairs / slowest / 1e6);
      reserved = std::max(reserved, allocator->reserved_peak());
    }
    // What each thread has alive at most, counted apart: a shared counter would slow the threads.
    for (int thread = 1; thread <= threads; thread++) {
      Count count;
      Mix<Count>(thread).run(count, nullptr, kWarmUp + pairs);
      asked += count.peak;
    }
    print(subject, {.workload = "mixed",
                    .threads = threads,
                    .operations = static_cast<std::uint64_t>(threads) * pairs,
                    .planned = static_cast<std::uint64_t>(threads) * pairs,
                    .asked = asked,
                    .reserved = reserved,
                    .million = median(millions)});
  }
}

// busy

struct Shared {
  std::barrier<> start;
  std::atomic<std::uint64_t> live = 0, asked = 0;
  std::atomic<bool> is_stopped = false;
  std::mutex lock;
  std::optional<std::string> why;

  explicit Shared(int threads) : start(threads) {}

  void asks(std::uint64_t bytes) {
    std::uint64_t now = live.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    std::uint64_t most = asked.load(std::memory_order_relaxed);
    while (most < now && !asked.compare_exchange_weak(most, now, std::memory_order_relaxed)) {
    }
  }

  void stop(const std::string& reason) {
    std::lock_guard held(lock);
    if (!why) why = reason;
    is_stopped.store(true, std::memory_order_relaxed);
  }
};

template <typename A>
void busy(const std::function<std::unique_ptr<A>()>& make, const Effort& effort, const std::string& subject) {
  constexpr int kThreads = 4, kSynchronizeEvery = 64;
  constexpr std::uint64_t kMostReserved = std::uint64_t{60} << 30;
  constexpr double kLongest = 20;
  for (int operations : effort.busy_operations) {
    auto allocator = make();
    Shared shared(kThreads);
    std::array<double, kThreads> times{}, calls{};
    std::array<int, kThreads> finished{};
    on_threads(kThreads, [&](int thread, const Stream& stream) {
      Draws draws(thread);
      std::array<Block, 8> live{};
      double in_calls = 0;
      int done = 0;
      shared.start.arrive_and_wait();
      auto start = Clock::now();
      while (done < operations && !shared.is_stopped.load(std::memory_order_relaxed)) {
        try {
          Block& block = live[draws.next() % live.size()];
          std::size_t least = std::size_t{256} << draws.next() % 16;
          std::size_t bytes = least + draws.next() % least;
          if (block.address) {
            auto called = Clock::now();
            allocator->free(stream, block.address, block.bytes);
            in_calls += seconds_since(called);
            shared.live.fetch_sub(block.bytes, std::memory_order_relaxed);
            block = {};
          }
          shared.asks(bytes);
          auto called = Clock::now();
          block = {allocator->allocate(stream, bytes), bytes};
          in_calls += seconds_since(called);
          check(cudaMemsetAsync(block.address, 0, bytes, stream));
          done++;
          if (done % kSynchronizeEvery == 0) {
            stream.synchronize();
            if (thread != 1) continue;
            if (allocator->reserved_peak() > kMostReserved)
              shared.stop("more than " + std::to_string(kMostReserved >> 30) + " GiB reserved");
            else if (seconds_since(start) > kLongest)
              shared.stop("longer than " + std::to_string(static_cast<int>(kLongest)) + " s");
          }
        } catch (const std::exception& error) {
          shared.stop(error.what());
        }
      }
      stream.synchronize();
      times[thread - 1] = seconds_since(start);
      calls[thread - 1] = in_calls;
      finished[thread - 1] = done;
      for (Block& block : live)
        if (block.address) allocator->free(stream, block.address, block.bytes);
      stream.synchronize();
    });
    std::uint64_t all = 0;
    double in_calls = 0;
    for (int thread = 0; thread < kThreads; thread++) {
      all += finished[thread];
      in_calls += calls[thread];
    }
    double slowest = *std::max_element(times.begin(), times.end());
    print(subject, {.workload = "busy",
                    .threads = kThreads,
                    .operations = all,
                    .planned = static_cast<std::uint64_t>(kThreads) * operations,
                    .asked = shared.asked.load(),
                    .reserved = allocator->reserved_peak(),
                    .ns = slowest * 1e9 * kThreads / static_cast<double>(all),
                    .call_ns = in_calls * 1e9 / static_cast<double>(all),
                    .stopped = shared.why});
  }
}

// gpt2

struct Log {
  struct Operation {
    std::size_t slot, bytes;  // no bytes: free
  };
  std::size_t slots = 0;
  std::uint64_t peak = 0;
  std::vector<Operation> operations;

  // Reads what `rivals --write-log` wrote.
  explicit Log(const std::string& path) {
    std::ifstream in(path);
    std::size_t count = 0;
    in >> slots >> count >> peak;
    char kind;
    for (Operation op{}; in >> kind >> op.slot; operations.push_back(op)) {
      op.bytes = 0;
      if (kind == 'a') in >> op.bytes;
      if (op.slot >= slots) throw std::runtime_error(path + " names a slot that it does not have");
    }
    if (count == 0 || operations.size() != count) throw std::runtime_error(path + " is no whole log");
  }
};

template <typename A>
double pass(A& allocator, const Stream& stream, const Log& log) {
  std::vector<Block> live(log.slots);
  auto start = Clock::now();
  for (const auto& op : log.operations) {
    Block& block = live[op.slot];
    if (op.bytes) {
      block = {allocator.allocate(stream, op.bytes), op.bytes};
    } else if (block.address) {
      allocator.free(stream, block.address, block.bytes);
      block = {};
    }
  }
  double seconds = seconds_since(start);
  for (Block& block : live)
    if (block.address) allocator.free(stream, block.address, block.bytes);
  stream.synchronize();
  return seconds * 1e9 / static_cast<double>(log.operations.size());
}

template <typename A>
void gpt2(const std::function<std::unique_ptr<A>()>& make, const std::string& path, const std::string& subject) {
  Log log(path);
  auto allocator = make();
  Stream stream;
  double first = pass(*allocator, stream, log);
  double second = pass(*allocator, stream, log);
  print(subject, {.workload = "gpt2",
                  .operations = log.operations.size(),
                  .planned = log.operations.size(),
                  .asked = log.peak,
                  .reserved = allocator->reserved_peak(),
                  .ns = second,
                  .first_ns = first});
}

// The command line: --subject NAME --log FILE [--workload NAME] [--quick]

struct Options {
  std::string subject, log, workload;
  Effort effort = kFull;

  Options(int count, char** arguments) {
    for (int i = 1; i < count; i++) {
      std::string name = arguments[i];
      auto value = [&]() -> std::string {
        if (++i >= count) throw std::runtime_error(name + " has no value");
        return arguments[i];
      };
      if (name == "--subject") subject = value();
      else if (name == "--log") log = value();
      else if (name == "--workload") workload = value();
      else if (name == "--quick") effort = kQuick;
      else throw std::runtime_error("there is no option " + name);
    }
  }
};

// Each workload on a new allocator. What fails is a row that says so; then the rest still runs.
template <typename A>
void run_all(const Options& options, const std::function<std::unique_ptr<A>()>& make) {
  require_draws();
  for (const std::string workload : {"pairs", "mixed", "busy", "gpt2"}) {
    if (!options.workload.empty() && options.workload != workload) continue;
    try {
      if (workload == "pairs") pairs<A>(make, options.effort, options.subject);
      else if (workload == "mixed") mixed<A>(make, options.effort, options.subject);
      else if (workload == "busy") busy<A>(make, options.effort, options.subject);
      else gpt2<A>(make, options.log, options.subject);
    } catch (const std::exception& error) {
      print_error(options.subject, workload, error.what());
    }
  }
}
