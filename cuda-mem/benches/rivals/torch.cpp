// PyTorch's caching allocator under the workloads of README.md: --subject torch, or torch-expandable with
// PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True in the environment.

#include "workloads.hpp"

#include <cstdlib>
#include <string>

#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/headeronly/version.h>

namespace {

namespace caching = c10::cuda::CUDACachingAllocator;

// A process has one. A new one is the old one with nothing in it.
struct Caching {
  Caching() {
    check(cudaDeviceSynchronize());
    caching::emptyCache();
    caching::resetPeakStats(0);
  }
  void* allocate(cudaStream_t stream, std::size_t bytes) { return caching::raw_alloc_with_stream(bytes, stream); }
  void free(cudaStream_t, void* address, std::size_t) { caching::raw_delete(address); }
  std::uint64_t reserved_peak() {
    auto aggregate = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    return caching::getDeviceStats(0).reserved_bytes[aggregate].peak;
  }
};

}  // namespace

int main(int count, char** arguments) try {
  Options options(count, arguments);
  std::fprintf(stderr, "PyTorch %d.%d.%d\n", TORCH_VERSION_MAJOR, TORCH_VERSION_MINOR, TORCH_VERSION_PATCH);
  check(cudaSetDevice(0));
  caching::init(1);
  // Rows must not carry the name of a setting that was not made.
  const char* settings = std::getenv("PYTORCH_CUDA_ALLOC_CONF");
  const char* name = settings ? "torch-expandable" : "torch";
  if (options.subject != name) throw std::runtime_error(std::string("the settings are those of --subject ") + name);
  run_all<Caching>(options, [] { return std::make_unique<Caching>(); });
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
