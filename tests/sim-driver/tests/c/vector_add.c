/* A program in C that gives the simulator a kernel of its own. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "simcuda.h"

/* What cuda.h declares. */
typedef unsigned long long CUdeviceptr;
unsigned cuInit(unsigned flags);
unsigned cuDevicePrimaryCtxRetain(void **context, int device);
unsigned cuCtxSetCurrent(void *context);
unsigned cuModuleLoadData(void **module, const void *image);
unsigned cuModuleGetFunction(void **function, void *module, const char *name);
unsigned cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *bytes, void *module, const char *name);
unsigned cuMemAlloc_v2(CUdeviceptr *address, size_t bytes);
unsigned cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes);
unsigned cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes);
unsigned cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                        unsigned block_y, unsigned block_z, unsigned shared_bytes, void *stream, void **arguments,
                        void **extra);
unsigned cuCtxSynchronize(void);

enum { COUNT = 100 };

static const char *PTX =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .global .u32 launches = 40;\n"
    ".visible .entry vector_add(.param .u64 a, .param .u64 b, .param .u64 sum, .param .u32 count) { ret; }\n";

static void want(int is_right, const char *what) {
    if (!is_right) {
        fprintf(stderr, "wrong: %s\n", what);
        exit(1);
    }
}

#define OK(call) want((call) == 0, #call)

static void argument(const simcuda_launch *launch, size_t index, void *out) {
    simcuda_parameter parameter = launch->parameters[index];
    memcpy(out, (const char *)launch->arguments + parameter.offset, parameter.size);
}

static void add(const simcuda_launch *launch, void *user) {
    CUdeviceptr a, b, sum;
    uint64_t launches;
    size_t bytes;
    uint32_t count, number;
    float left[COUNT], right[COUNT];
    if (launch->parameter_count != 4 || launch->arguments_size != 28) {
        simcuda_kernel_error(launch, "this is another kernel");
        return;
    }
    argument(launch, 0, &a);
    argument(launch, 1, &b);
    argument(launch, 2, &sum);
    argument(launch, 3, &count);
    if (count > COUNT) {
        simcuda_kernel_error(launch, "too many elements");
        return;
    }
    if (simcuda_read(launch, a, left, count * sizeof(float)) != 0 ||
        simcuda_read(launch, b, right, count * sizeof(float)) != 0) {
        return;
    }
    for (uint32_t index = 0; index < count; index++) {
        left[index] += right[index];
    }
    if (simcuda_write(launch, sum, left, count * sizeof(float)) == 0) {
        *(unsigned *)user += launch->grid[0] * launch->block[0];
    }
    if (simcuda_variable(launch, "nothing", NULL, NULL) == 0 ||
        simcuda_variable(launch, "launches", &launches, &bytes) != 0 || bytes != sizeof(number) ||
        simcuda_read(launch, launches, &number, bytes) != 0) {
        simcuda_kernel_error(launch, "the variable is not there");
        return;
    }
    number++;
    simcuda_write(launch, launches, &number, bytes);
}

static void release(void *user) {
    *(unsigned *)user += 1000;
}

int main(void) {
    void *context, *module, *function;
    CUdeviceptr a, b, sum, launches;
    float numbers[COUNT], result[COUNT];
    uint32_t count = COUNT, number;
    size_t bytes;
    unsigned notes = 0;
    char report[500];

    want(strncmp(simcuda_identify(), "cuda-sim ", 9) == 0, "identity");
    OK(simcuda_kernel("vector_add", add, &notes, release));
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    OK(cuModuleLoadData(&module, PTX));
    OK(cuModuleGetFunction(&function, module, "vector_add"));
    OK(cuMemAlloc_v2(&a, sizeof numbers));
    OK(cuMemAlloc_v2(&b, sizeof numbers));
    OK(cuMemAlloc_v2(&sum, sizeof numbers));
    for (int index = 0; index < COUNT; index++) {
        numbers[index] = (float)index;
    }
    OK(cuMemcpyHtoD_v2(a, numbers, sizeof numbers));
    OK(cuMemcpyHtoD_v2(b, numbers, sizeof numbers));

    void *arguments[] = {&a, &b, &sum, &count};
    OK(cuLaunchKernel(function, 4, 1, 1, 32, 1, 1, 0, NULL, arguments, NULL));
    OK(cuMemcpyDtoH_v2(result, sum, sizeof result));
    for (int index = 0; index < COUNT; index++) {
        want(result[index] == 2 * numbers[index], "sum");
    }
    want(notes == 128, "the model saw grid and block");
    OK(cuModuleGetGlobal_v2(&launches, &bytes, module, "launches"));
    OK(cuMemcpyDtoH_v2(&number, launches, sizeof number));
    want(bytes == sizeof number && number == 41, "the model counted in the module");
    want(simcuda_reports() == 0, "no reports");

    /* Past the end of a block, and with too many elements. */
    b += 4;
    OK(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, NULL, arguments, NULL));
    count = COUNT + 1;
    OK(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, NULL, arguments, NULL));
    OK(cuCtxSynchronize());
    want(simcuda_report(1, report, sizeof report) > 0 && strstr(report, "illegal address: kernel read 400 bytes"),
         "the access is reported");
    want(simcuda_report(2, report, sizeof report) > 0 && strstr(report, "too many elements"), "the error is reported");
    want(simcuda_reports() == 3, "all is reported once");

    OK(simcuda_kernel("vector_add", NULL, NULL, NULL));
    want(notes == 1128, "the model is released");
    want(simcuda_kernel("vector_add", NULL, NULL, NULL) == 500, "no model is left");
    want(simcuda_kernel(NULL, add, NULL, NULL) == 1, "a model has a name");
    want(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL) == 801, "without a model");
    puts("done");
    return 0;
}
