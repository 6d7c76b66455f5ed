// Allocation for PyTorch that raises PyTorch's own errors. Built by cuda_mem.torch where PyTorch is.

#include <c10/util/Exception.h>

#include "cudamem.h"

extern "C" void *cudamem_torch_shim_alloc(ptrdiff_t bytes, int device, struct CUstream_st *stream) {
  void *pointer = cudamem_torch_alloc(bytes, device, stream);
  if (pointer != nullptr || bytes == 0) {
    return pointer;
  }
  if (cudamem_last_error_status() == CUDAMEM_STATUS_OUT_OF_MEMORY) {
    TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. ", cudamem_last_error_message());
  }
  TORCH_CHECK(false, "cuda-mem: ", cudamem_last_error_message());
}
