/*
 * What an allocation and its deallocation cost through the C interface: nanoseconds a pair of 1 KiB, over an arena and a
 * pool, without and with a checking adaptor. The median of 51 rounds of 20,000 pairs after 5 rounds of warm-up, one
 * thread, one stream without work; the four take turns.
 *
 *     cargo build --release -p cuda-mem-capi
 *     cc -O2 -I cuda-mem/capi/include cuda-mem/capi/benches/pairs.c -L target/release -lcudamem -ldl -o pairs
 *     LD_LIBRARY_PATH=target/release ./pairs
 */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cudamem.h"

enum { PAIRS = 20000, ROUNDS = 51, WARM_UP = 5, BYTES = 1024, KINDS = 4 };

static void ok(unsigned code, const char *what) {
    if (code != 0) {
        fprintf(stderr, "%s: %u %s\n", what, code, cudamem_last_error_message());
        exit(1);
    }
}

static double round_of(cudamem_resource *resource, struct CUstream_st *stream) {
    struct timespec start, end;
    void *block;
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (int pair = 0; pair < PAIRS; pair++) {
        ok(cudamem_allocate(resource, BYTES, 0, 0, stream, &block), "allocate");
        ok(cudamem_deallocate(resource, block, BYTES, 0, 0, stream), "deallocate");
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    return ((double)(end.tv_sec - start.tv_sec) * 1e9 + (double)(end.tv_nsec - start.tv_nsec)) / PAIRS;
}

static int by_value(const void *left, const void *right) {
    double difference = *(const double *)left - *(const double *)right;
    return (difference > 0) - (difference < 0);
}

static void processor(char *text, size_t bytes) {
    FILE *file = fopen("/proc/cpuinfo", "r");
    snprintf(text, bytes, "unknown processor");
    while (file != NULL && fgets(text, (int)bytes, file) != NULL) {
        if (strncmp(text, "model name", 10) == 0) {
            text[strcspn(text, "\n")] = 0;
            memmove(text, strchr(text, ':') + 2, strlen(strchr(text, ':') + 2) + 1);
            break;
        }
    }
    if (file != NULL) {
        fclose(file);
    }
}

int main(void) {
    static const char *names[KINDS] = {"arena", "arena, checked", "pool", "pool, checked"};
    static double seen[KINDS][ROUNDS];
    cudamem_resource *resources[KINDS];
    struct CUstream_st *stream;
    void *context, *driver;
    unsigned (*init)(unsigned), (*retain)(void **, int), (*set_current)(void *);
    unsigned (*create)(struct CUstream_st **, unsigned), (*device_name)(char *, int, int);
    char name[200], cpu[300];
    const char *path = getenv("CUDA_DRIVER_SYS_LIBRARY");
    driver = dlopen(path != NULL ? path : "libcuda.so.1", RTLD_NOW);
    if (driver == NULL) {
        fprintf(stderr, "no driver: %s\n", dlerror());
        return 1;
    }
    *(void **)&init = dlsym(driver, "cuInit");
    *(void **)&retain = dlsym(driver, "cuDevicePrimaryCtxRetain");
    *(void **)&set_current = dlsym(driver, "cuCtxSetCurrent");
    *(void **)&create = dlsym(driver, "cuStreamCreate");
    *(void **)&device_name = dlsym(driver, "cuDeviceGetName");
    ok(init(0), "cuInit");
    ok(retain(&context, 0), "cuDevicePrimaryCtxRetain");
    ok(set_current(context), "cuCtxSetCurrent");
    ok(create(&stream, 1), "cuStreamCreate");
    ok(device_name(name, sizeof name, 0), "cuDeviceGetName");
    processor(cpu, sizeof cpu);
    printf("%s, %s; ns for a pair of %d bytes, the median of %d rounds of %d pairs, one thread\n", name, cpu, BYTES, ROUNDS,
           PAIRS);
    ok(cudamem_arena_create(0, NULL, &resources[0]), "arena");
    ok(cudamem_checked_create(resources[0], 1, &resources[1]), "checked");
    ok(cudamem_pool_create(0, NULL, &resources[2]), "pool");
    ok(cudamem_checked_create(resources[2], 1, &resources[3]), "checked");
    for (int round = -WARM_UP; round < ROUNDS; round++) {
        for (int kind = 0; kind < KINDS; kind++) {
            double cost = round_of(resources[kind], stream);
            if (round >= 0) {
                seen[kind][round] = cost;
            }
        }
    }
    for (int kind = 0; kind < KINDS; kind++) {
        qsort(seen[kind], ROUNDS, sizeof seen[kind][0], by_value);
        printf("%-16s %8.1f ns (%.1f to %.1f)\n", names[kind], seen[kind][ROUNDS / 2], seen[kind][0],
               seen[kind][ROUNDS - 1]);
        cudamem_resource_release(resources[KINDS - 1 - kind]);
    }
    return 0;
}
