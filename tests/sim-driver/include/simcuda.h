/*
 * The simulated CUDA driver's own functions: kernels of your own, faults, counts and reports.
 *
 * Link with libcuda_sim.so, or look the functions up in it with dlsym. They need no cuInit and no context. Streams are
 * CUstream handles, addresses are CUdeviceptr, and a simcuda_result is a CUresult: 0 is success.
 *
 * In Rust, use cuda_sim::Control and cuda_sim::kernel.
 */
#ifndef SIMCUDA_H
#define SIMCUDA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef uint32_t simcuda_result;

/* The library's identity, with the version of these functions: "cuda-sim 6". */
const char *simcuda_identify(void);

/* ---- Kernels of your own ------------------------------------------------------------------------------------------ */

/* Position of an argument in the argument buffer. */
typedef struct simcuda_parameter {
    size_t offset;
    size_t size;
} simcuda_parameter;

/* One launch, as its model sees it. Valid while the model runs. */
typedef struct simcuda_launch {
    const char *name;
    uint32_t grid[3];
    uint32_t block[3];
    /* Bytes of dynamic shared memory of a block. */
    uint32_t shared_bytes;
    /* The ordinal of the device. */
    uint32_t device;
    /* All arguments, at a multiple of 16 bytes. */
    const void *arguments;
    size_t arguments_size;
    /* Where each argument lies, from the declaration in PTX. */
    const simcuda_parameter *parameters;
    size_t parameter_count;
    /* The simulator's own. */
    const void *run;
    /* When it was submitted, in nanoseconds of CLOCK_MONOTONIC; for a kernel of a graph, when that was launched. */
    uint64_t submitted_ns;
} simcuda_launch;

/* The work of a kernel, done at once for all threads of a launch. It runs in stream order on a thread of the simulator,
 * for several streams at once. It must not call the driver. */
typedef void (*simcuda_model)(const simcuda_launch *launch, void *user);

/* Called once with the model's argument, when no launch can use the model any more: on any thread, perhaps while the
 * driver is locked. It must not call the driver. */
typedef void (*simcuda_release)(void *user);

/* Gives every kernel of this name a model, for launches that are submitted or captured from now on. It takes the place
 * of an earlier model, or of a built-in kernel. A null model removes it: NOT_FOUND if there is none. A null or empty
 * name is INVALID_VALUE. `release` may be null. */
simcuda_result simcuda_kernel(const char *name, simcuda_model model, void *user, simcuda_release release);

/* Copies memory of the device to the model, or the other way round. A launch may access what a kernel on its device
 * could when it was submitted. Anything else is ILLEGAL_ADDRESS and reported, and all later accesses of the launch
 * fail as well. With a null `out` or `from` the access is only checked. The order sanitizer sees each access. */
simcuda_result simcuda_read(const simcuda_launch *launch, uint64_t address, void *out, size_t bytes);
simcuda_result simcuda_write(const simcuda_launch *launch, uint64_t address, const void *from, size_t bytes);

/* Address and bytes of a variable of the kernel's module, declared with .global or .const; each may be null. NOT_FOUND if
 * the module has none of this name. */
simcuda_result simcuda_variable(const simcuda_launch *launch, const char *name, uint64_t *address, size_t *bytes);

/* Reports that the model cannot do its work. All later accesses of the launch fail. */
void simcuda_kernel_error(const simcuda_launch *launch, const char *why);

/* ---- Calls and faults --------------------------------------------------------------------------------------------- */

/* Clears counts, the log, faults and reports. Live objects and models are unaffected. */
void simcuda_reset(void);

/* Calls of a function, by its real symbol such as "cuMemAlloc_v2", and of all functions. */
uint64_t simcuda_calls(const char *function);
uint64_t simcuda_calls_total(void);

/* Starts a log of the functions called; reads one name of it. The result is the length of the name, 0 past the end. */
void simcuda_call_log_start(void);
size_t simcuda_call_log(uint64_t index, char *buffer, size_t bytes);

/* The nth call from now, of a function or of any, fails with this code. A function that releases something releases
 * it all the same, unless told not to. 0 if there is no such function. */
uint64_t simcuda_fail(const char *function, uint64_t nth, simcuda_result code);
uint64_t simcuda_fail_without_effect(const char *function, uint64_t nth, simcuda_result code);
void simcuda_fail_call(uint64_t nth, simcuda_result code);

/* Clears the faults that have not occurred yet. */
void simcuda_fail_clear(void);

/* ---- What is alive ------------------------------------------------------------------------------------------------ */

/* Counts of what the program has not released. */
typedef struct simcuda_live_counts {
    uint64_t primary_retains;
    uint64_t contexts;
    uint64_t streams;
    uint64_t events;
    uint64_t pools;
    /* Blocks of device and managed memory, and their bytes. */
    uint64_t allocations;
    uint64_t bytes;
    uint64_t host_allocations;
    uint64_t registrations;
    uint64_t graphs;
    uint64_t graph_execs;
    /* Blocks that launched graphs allocated. */
    uint64_t graph_allocations;
    uint64_t captures;
    /* Virtual memory management. */
    uint64_t physical_allocations;
    uint64_t physical_bytes;
    uint64_t reservations;
    uint64_t mappings;
    uint64_t annotated;
    uint64_t modules;
    uint64_t libraries;
    /* Modules, and libraries once for each context that uses them. */
    uint64_t images;
    uint64_t links;
} simcuda_live_counts;

void simcuda_live(simcuda_live_counts *out);

/* Modules and libraries loaded on a device. */
uint64_t simcuda_images(uint64_t device);

/* Bytes taken on a GPU of the machine, or on one of its MIG instances, counted from 1; 0 is the whole GPU. */
uint64_t simcuda_memory_used(uint64_t gpu, uint64_t instance);

/* ---- The order sanitizer ------------------------------------------------------------------------------------------ */

/* Number of reports; reads one. The result is its length, 0 past the last. A thousand are kept. */
uint64_t simcuda_reports(void);
size_t simcuda_report(uint64_t index, char *buffer, size_t bytes);

/* Makes a range of mapped memory a block from this point of the stream on; ends it. */
simcuda_result simcuda_annotate_allocate(uint64_t address, uint64_t bytes, void *stream);
simcuda_result simcuda_annotate_free(uint64_t address, uint64_t bytes, void *stream);

/* ---- Memory for third parties ------------------------------------------------------------------------------------- */

/* Both answer NOT_SUPPORTED on Windows, where no memory has descriptors. */

/* Whether a third party may pin this range, as for GPUDirect; else INVALID_VALUE. */
simcuda_result simcuda_check_direct(uint64_t address, uint64_t bytes);

/* A file that is the memory from this address on, which the caller closes, and how much of the range it covers. */
simcuda_result simcuda_part(uint64_t address, uint64_t bytes, int *descriptor, uint64_t *offset, uint64_t *covered);

/* Adds a function that is called before memory outside the pools is freed or unmapped. It must not call the driver.
   Null removes all. */
void simcuda_on_free(void (*call)(uint64_t address, uint64_t bytes));

#ifdef __cplusplus
}
#endif

#endif
