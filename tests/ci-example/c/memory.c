/* A test of code in C, which needs no GPU and no toolkit: it is linked with the simulated driver. */

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "simcuda.h"

/* What cuda.h declares, for machines without a toolkit. */
typedef unsigned long long CUdeviceptr;
int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxSetCurrent(void *context);
int cuStreamCreate(void **stream, unsigned flags);
int cuStreamSynchronize(void *stream);
int cuMemAllocAsync(CUdeviceptr *address, size_t bytes, void *stream);
int cuMemFreeAsync(CUdeviceptr address, void *stream);
int cuMemsetD32Async(CUdeviceptr address, unsigned value, size_t count, void *stream);
int cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes);

static int failures;

static void want(int is_right, const char *what) {
    printf("%s: %s\n", is_right ? "ok" : "FAILED", what);
    failures += !is_right;
}

/* Code under test: bytes that the device has filled. */
static int filled(void *stream, unsigned value, unsigned *out, size_t count) {
    CUdeviceptr block;
    int code = cuMemAllocAsync(&block, count * sizeof *out, stream);
    if (code != 0) {
        return code;
    }
    code = cuMemsetD32Async(block, value, count, stream);
    if (code == 0) {
        code = cuStreamSynchronize(stream);
    }
    if (code == 0) {
        code = cuMemcpyDtoH_v2(out, block, count * sizeof *out);
    }
    int freed = cuMemFreeAsync(block, stream);
    return code != 0 ? code : freed;
}

int main(void) {
    void *context, *stream;
    unsigned numbers[100];
    want(strncmp(simcuda_identify(), "cuda-sim ", 9) == 0, "the driver is the simulator");
    want(cuInit(0) == 0 && cuDevicePrimaryCtxRetain(&context, 0) == 0 && cuCtxSetCurrent(context) == 0 &&
             cuStreamCreate(&stream, 1) == 0,
         "the driver starts");

    want(filled(stream, 7, numbers, 100) == 0 && numbers[0] == 7 && numbers[99] == 7, "memory is filled");
    want(simcuda_calls("cuMemAllocAsync") == 1 && simcuda_calls("cuMemFreeAsync") == 1, "what is allocated is freed");

    simcuda_fail("cuMemAllocAsync", 1, 2);
    want(filled(stream, 7, numbers, 100) == 2, "out of memory comes back");

    char report[256] = "";
    simcuda_report(0, report, sizeof report);
    want(simcuda_reports() == 0, report[0] ? report : "nothing is out of order");
    return failures != 0;
}
