// RMM's resources under the workloads of README.md: --subject rmm-pool, rmm-arena or rmm-async.

#include "workloads.hpp"

#include <rmm/mr/arena_memory_resource.hpp>
#include <rmm/mr/cuda_async_memory_resource.hpp>
#include <rmm/mr/cuda_memory_resource.hpp>
#include <rmm/mr/pool_memory_resource.hpp>
#include <rmm/mr/statistics_resource_adaptor.hpp>
#include <rmm/version_config.hpp>

namespace {

constexpr std::size_t kAlignment = 256;
constexpr std::size_t kFirstPool = std::size_t{256} << 20;
// It does not grow, and the recorded training run needs 13 GiB of it.
constexpr std::size_t kArena = std::size_t{24} << 30;

// A resource that takes its memory of cudaMalloc.
template <typename Resource>
struct OverMalloc {
  // Counts what the resource takes. Copies share their counters.
  rmm::mr::statistics_resource_adaptor upstream{rmm::mr::cuda_memory_resource{}};
  Resource resource;

  explicit OverMalloc(std::size_t bytes) : resource(upstream, bytes) {}

  void* allocate(cudaStream_t stream, std::size_t bytes) {
    return resource.allocate(cuda::stream_ref{stream}, bytes, kAlignment);
  }
  void free(cudaStream_t stream, void* address, std::size_t bytes) {
    resource.deallocate(cuda::stream_ref{stream}, address, bytes, kAlignment);
  }
  std::uint64_t reserved_peak() { return upstream.get_bytes_counter().peak; }
};

struct Async {
  rmm::mr::cuda_async_memory_resource resource;

  void* allocate(cudaStream_t stream, std::size_t bytes) {
    return resource.allocate(cuda::stream_ref{stream}, bytes, kAlignment);
  }
  void free(cudaStream_t stream, void* address, std::size_t bytes) {
    resource.deallocate(cuda::stream_ref{stream}, address, bytes, kAlignment);
  }
  std::uint64_t reserved_peak() {
    std::uint64_t bytes = 0;
    check(cudaMemPoolGetAttribute(resource.pool_handle(), cudaMemPoolAttrReservedMemHigh, &bytes));
    return bytes;
  }
};

}  // namespace

int main(int count, char** arguments) try {
  Options options(count, arguments);
  std::fprintf(stderr, "RMM %d.%d.%d\n", RMM_VERSION_MAJOR, RMM_VERSION_MINOR, RMM_VERSION_PATCH);
  check(cudaSetDevice(0));
  using Pool = OverMalloc<rmm::mr::pool_memory_resource>;
  using Arena = OverMalloc<rmm::mr::arena_memory_resource>;
  if (options.subject == "rmm-pool")
    run_all<Pool>(options, [] { return std::make_unique<Pool>(kFirstPool); });
  else if (options.subject == "rmm-arena")
    run_all<Arena>(options, [] { return std::make_unique<Arena>(kArena); });
  else if (options.subject == "rmm-async")
    run_all<Async>(options, [] { return std::make_unique<Async>(); });
  else
    throw std::runtime_error("--subject is rmm-pool, rmm-arena or rmm-async");
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
