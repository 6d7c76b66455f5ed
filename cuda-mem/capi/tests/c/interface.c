/* The C interface from C: on a GPU, or on the simulated driver. Streams are the program's own, made by the driver. The argument
   is a folder for files. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cudamem.h"
#include "system.h"

typedef struct CUstream_st *stream_t;
typedef unsigned long long address_t;

/* The driver that the library uses, too. */
static void *driver;
static unsigned (*stream_create)(stream_t *, unsigned);
static unsigned (*stream_destroy)(stream_t);
static unsigned (*stream_synchronize)(stream_t);
static unsigned (*memset_words)(address_t, unsigned, size_t, stream_t);
static unsigned (*copy_to_host)(void *, address_t, size_t, stream_t);
static unsigned (*set_current)(void *);
static void *context;

static void want(int is_right, const char *what, int line) {
    if (!is_right) {
        fprintf(stderr, "line %d: wrong: %s; the last error: %s\n", line, what, cudamem_last_error_message());
        exit(1);
    }
}

#define WANT(condition) want((condition), #condition, __LINE__)
#define OK(call) want((call) == CUDAMEM_STATUS_SUCCESS, #call, __LINE__)
#define DRIVER(call) want((call) == 0, #call, __LINE__)
#define REFUSED(status, text, call)                                                                                  \
    do {                                                                                                             \
        want((call) == CUDAMEM_STATUS_##status, #call, __LINE__);                                                    \
        want(strstr(cudamem_last_error_message(), text) != NULL, "the text has: " text, __LINE__);                   \
    } while (0)

/* A function of the driver. ISO C has no conversion from an object pointer. */
static void find(void *function, const char *name) {
    void *found = address_in(driver, name);
    want(found != NULL, name, __LINE__);
    memcpy(function, &found, sizeof found);
}

static void start(void) {
    unsigned (*init)(unsigned);
    unsigned (*retain)(void **, int);
    const char *path = getenv("CUDA_DRIVER_SYS_LIBRARY");
    driver = open_library(path != NULL ? path : DRIVER_FILE);
    want(driver != NULL, "a driver", __LINE__);
    find(&init, "cuInit");
    find(&retain, "cuDevicePrimaryCtxRetain");
    find(&set_current, "cuCtxSetCurrent");
    find(&stream_create, "cuStreamCreate");
    find(&stream_destroy, "cuStreamDestroy_v2");
    find(&stream_synchronize, "cuStreamSynchronize");
    find(&memset_words, "cuMemsetD32Async");
    find(&copy_to_host, "cuMemcpyDtoHAsync_v2");
    DRIVER(init(0));
    DRIVER(retain(&context, 0));
    DRIVER(set_current(context));
}

static stream_t new_stream(void) {
    stream_t stream;
    DRIVER(stream_create(&stream, 1));
    return stream;
}

static void end_stream(stream_t stream) {
    OK(cudamem_stream_detach(0, stream));
    DRIVER(stream_destroy(stream));
}

static void fill(void *block, unsigned word, size_t words, stream_t stream) {
    DRIVER(memset_words((address_t)(uintptr_t)block, word, words, stream));
}

/* The first and the last word of a block, once the stream is done. */
static void expect(void *block, unsigned word, size_t words, stream_t stream) {
    unsigned seen[2];
    address_t at = (address_t)(uintptr_t)block;
    DRIVER(copy_to_host(&seen[0], at, sizeof seen[0], stream));
    DRIVER(copy_to_host(&seen[1], at + (words - 1) * sizeof word, sizeof word, stream));
    DRIVER(stream_synchronize(stream));
    want(seen[0] == word && seen[1] == word, "the bytes of a block", __LINE__);
}

static void mistakes(void) {
    cudamem_resource *resource = (cudamem_resource *)1;
    void *block = &block;
    cudamem_pool_options options;
    WANT(strcmp(cudamem_last_error_message(), "") == 0 && cudamem_last_error_driver_code() == 0);
    REFUSED(INVALID_VALUE, "`count` is null", cudamem_device_count(NULL));
    REFUSED(INVALID_VALUE, "`pool` is null", cudamem_pool_create(0, NULL, NULL));
    REFUSED(INVALID_VALUE, "numbered from 0", cudamem_pool_create(-1, NULL, &resource));
    WANT(resource == NULL);
    REFUSED(INVALID_DEVICE, "", cudamem_arena_create(1000, NULL, &resource));
    REFUSED(INVALID_VALUE, "`resource` is null", cudamem_allocate(NULL, 1, 0, 0, NULL, &block));
    WANT(block == NULL);
    REFUSED(INVALID_VALUE, "`resource` is null", cudamem_deallocate(NULL, NULL, 1, 0, 0, NULL));
    REFUSED(INVALID_VALUE, "`upstream` is null", cudamem_limit_create(NULL, 1, &resource));
    REFUSED(INVALID_VALUE, "`resource` is null", cudamem_trim(NULL, 0));
    cudamem_pool_options_init(&options, sizeof options);
    options.size = 12;
    REFUSED(INVALID_VALUE, "`size` of the options is 12", cudamem_pool_create(0, &options, &resource));
    cudamem_pool_options_init(&options, sizeof options);
    options.reuse = 8;
    REFUSED(INVALID_VALUE, "`reuse` is 8", cudamem_pool_create(0, &options, &resource));
    cudamem_pool_options_init(&options, sizeof options);
    options.reserved = 1;
    REFUSED(INVALID_VALUE, "`reserved` is 1", cudamem_pool_create(0, &options, &resource));
    cudamem_resource_release(NULL);
    WANT(cudamem_resource_retain(NULL) == NULL);
    WANT(strcmp(cudamem_status_name(CUDAMEM_STATUS_OUT_OF_MEMORY), "out of memory") == 0);
    WANT(strcmp(cudamem_status_name(-5), "unknown status") == 0);
}

/* The options of a later header are taken if they are the defaults, and refused if not. */
static void options_grow(void) {
    struct {
        cudamem_arena_options known;
        uint64_t later;
    } options;
    cudamem_resource *arena;
    memset(&options, 0, sizeof options);
    cudamem_arena_options_init(&options.known, sizeof options);
    WANT(options.known.size == sizeof options && options.later == 0);
    OK(cudamem_arena_create(0, &options.known, &arena));
    cudamem_resource_release(arena);
    options.later = 1;
    REFUSED(INVALID_VALUE, "does not know", cudamem_arena_create(0, &options.known, &arena));
    cudamem_arena_options_init(&options.known, sizeof options.known);
    options.known.slack = 0.5;
    REFUSED(INVALID_VALUE, "", cudamem_arena_create(0, &options.known, &arena));
    cudamem_arena_options_init(&options.known, sizeof options.known);
    options.known.max_share = -1.0;
    REFUSED(INVALID_VALUE, "", cudamem_arena_create(0, &options.known, &arena));
}

static void pools(void) {
    cudamem_resource *pool, *other;
    cudamem_pool_options options;
    cudamem_pool_stats stats;
    stream_t stream = new_stream();
    void *block, *none;
    cudamem_pool_options_init(&options, sizeof options);
    options.release_threshold = 64 << 20;
    OK(cudamem_pool_create(0, &options, &pool));
    OK(cudamem_allocate(pool, 4000, 0, 0, stream, &block));
    WANT(block != NULL && (uintptr_t)block % 256 == 0);
    fill(block, 7, 1000, stream);
    expect(block, 7, 1000, stream);
    OK(cudamem_pool_read_stats(pool, &stats, sizeof stats));
    WANT(stats.used >= 4000 && stats.reserved >= stats.used && stats.used_high >= stats.used);
    OK(cudamem_allocate(pool, 0, 0, -1, stream, &none));
    WANT(none == NULL);
    OK(cudamem_deallocate(pool, none, 0, 0, -1, stream));
    REFUSED(INVALID_VALUE, "align", cudamem_allocate(pool, 1, 3, 0, stream, &none));
    REFUSED(INVALID_VALUE, "align", cudamem_allocate(pool, 1, 4096, 0, stream, &none));
    REFUSED(INVALID_VALUE, "only a checked resource", cudamem_deallocate(pool, block, 0, 0, 0, stream));
    REFUSED(INVALID_VALUE, "another resource than an arena", cudamem_arena_reset_peak(pool));
    OK(cudamem_deallocate(pool, block, 4000, 0, 0, stream));
    DRIVER(stream_synchronize(stream));
    OK(cudamem_trim(pool, 0));
    OK(cudamem_pool_read_stats(pool, &stats, sizeof stats));
    WANT(stats.used == 0 && stats.reserved == 0);

    /* The current pool of the device, and the default one afterwards. */
    OK(cudamem_pool_make_current(pool));
    OK(cudamem_pool_default(0, &other));
    OK(cudamem_pool_make_current(other));
    cudamem_resource_release(other);
    OK(cudamem_limit_create(pool, 1 << 20, &other));
    REFUSED(INVALID_VALUE, "another resource than a pool", cudamem_pool_make_current(other));
    OK(cudamem_pool_read_stats(other, &stats, sizeof stats));
    cudamem_resource_release(other);
    cudamem_resource_release(pool);
    end_stream(stream);
}

static void arenas(void) {
    enum { ROUNDS = 300, BLOCKS = 8 };
    cudamem_resource *arena;
    cudamem_arena_options options;
    cudamem_arena_stats stats;
    stream_t streams[2], fresh;
    void *blocks[BLOCKS];
    cudamem_arena_options_init(&options, sizeof options);
    options.max_bytes = 1 << 30;
    OK(cudamem_arena_create(0, &options, &arena));
    streams[0] = new_stream();
    streams[1] = new_stream();
    for (unsigned round = 0; round < ROUNDS; round++) {
        for (unsigned at = 0; at < BLOCKS; at++) {
            size_t words = 100 + 9000 * (size_t)((round + at) % 7);
            stream_t stream = streams[(round + at) % 2];
            OK(cudamem_allocate(arena, words * 4, 0, 0, stream, &blocks[at]));
            fill(blocks[at], round * BLOCKS + at, words, stream);
        }
        for (unsigned at = 0; at < BLOCKS; at++) {
            size_t words = 100 + 9000 * (size_t)((round + at) % 7);
            unsigned own = (round + at) % 2;
            if (round % 10 == 0) {
                expect(blocks[at], round * BLOCKS + at, words, streams[own]);
            }
            if (at % 3 == 0) {
                OK(cudamem_deallocate_after(arena, blocks[at], words * 4, 0, 0, streams[own], &streams[1 - own], 1));
            } else {
                OK(cudamem_deallocate(arena, blocks[at], words * 4, 0, 0, streams[own]));
            }
        }
    }
    OK(cudamem_allocate(arena, 1000, 0, 0, streams[0], &blocks[0]));
    REFUSED(INVALID_VALUE, "`others` is null", cudamem_deallocate_after(arena, blocks[0], 1000, 0, 0, streams[0], NULL, 2));
    OK(cudamem_deallocate_after(arena, blocks[0], 1000, 0, 0, streams[0], NULL, 0));
    OK(cudamem_deallocate_after(arena, NULL, 1, 0, 0, streams[0], NULL, 0));
    REFUSED(OUT_OF_MEMORY, "", cudamem_allocate(arena, (size_t)2 << 30, 0, 0, streams[0], &blocks[0]));
    REFUSED(OUT_OF_MEMORY, "address space", cudamem_allocate(arena, SIZE_MAX, 0, 0, streams[0], &blocks[0]));
    OK(cudamem_deallocate(arena, NULL, 5, 3, 77, streams[0]));
    WANT(blocks[0] == NULL);

    /* Streams that come and go, some with the same handle. */
    for (unsigned round = 0; round < 50; round++) {
        fresh = new_stream();
        OK(cudamem_allocate(arena, 1 << 16, 0, -1, fresh, &blocks[0]));
        fill(blocks[0], round, 1 << 14, fresh);
        expect(blocks[0], round, 1 << 14, fresh);
        OK(cudamem_deallocate(arena, blocks[0], 1 << 16, 0, -1, fresh));
        end_stream(fresh);
    }

    /* Default streams: null and 1 are the same. */
    for (uintptr_t stream = 0; stream < 3; stream++) {
        OK(cudamem_allocate(arena, 1000, 0, 0, (stream_t)stream, &blocks[0]));
        fill(blocks[0], 3, 250, (stream_t)stream);
        expect(blocks[0], 3, 250, (stream_t)stream);
        OK(cudamem_deallocate(arena, blocks[0], 1000, 0, 0, (stream_t)stream));
    }
    DRIVER(stream_synchronize(streams[0]));
    DRIVER(stream_synchronize(streams[1]));
    OK(cudamem_arena_read_stats(arena, &stats, sizeof stats));
    WANT(stats.live == 0 && stats.live_blocks == 0 && stats.reserved_peak <= (uint64_t)1 << 30);
    OK(cudamem_trim(arena, 0));
    OK(cudamem_arena_reset_peak(arena));
    OK(cudamem_arena_read_stats(arena, &stats, sizeof stats));
    WANT(stats.reserved_peak == stats.reserved);
    REFUSED(INVALID_VALUE, "no pool", cudamem_pool_read_stats(arena, &(cudamem_pool_stats){0}, sizeof(cudamem_pool_stats)));
    end_stream(streams[0]);
    end_stream(streams[1]);
    cudamem_resource_release(arena);
}

/* An arena over a pool, which has all of its memory. */
static void over_a_pool(void) {
    cudamem_resource *pool, *arena;
    cudamem_pool_stats stats;
    cudamem_arena_options options;
    stream_t stream = new_stream();
    void *block;
    cudamem_arena_options_init(&options, sizeof options);
    options.slack = 1.2;
    options.reuse = 3;
    OK(cudamem_pool_create(0, NULL, &pool));
    REFUSED(INVALID_VALUE, "`upstream` is null", cudamem_arena_create_over(NULL, &options, &arena));
    OK(cudamem_arena_create_over(pool, &options, &arena));
    cudamem_resource_release(pool);
    OK(cudamem_allocate(arena, 1 << 20, 0, -1, stream, &block));
    fill(block, 5, 1 << 18, stream);
    expect(block, 5, 1 << 18, stream);
    OK(cudamem_pool_read_stats(arena, &stats, sizeof stats));
    WANT(stats.used >= 1 << 20);
    REFUSED(INVALID_VALUE, "pass the size", cudamem_pool_read_stats(arena, &stats, 3));
    OK(cudamem_deallocate(arena, block, 1 << 20, 0, -1, stream));
    DRIVER(stream_synchronize(stream));
    cudamem_resource_release(arena);
    end_stream(stream);
}

static void adaptors(void) {
    cudamem_resource *arena, *limited, *counted, *checked, *strict;
    cudamem_statistics counts;
    stream_t stream = new_stream(), other = new_stream();
    void *block, *foreign, *none;
    OK(cudamem_arena_create(0, NULL, &arena));
    OK(cudamem_limit_create(arena, 1000, &limited));
    OK(cudamem_statistics_create(limited, &counted));
    OK(cudamem_checked_create(counted, 0, &checked));
    OK(cudamem_checked_create(counted, 1, &strict));
    /* Each keeps what it is over. */
    cudamem_resource_release(limited);
    WANT(cudamem_resource_retain(arena) == arena);
    cudamem_resource_release(arena);

    OK(cudamem_allocate(checked, 600, 0, 0, stream, &block));
    REFUSED(OUT_OF_MEMORY, "600 B are allocated", cudamem_allocate(checked, 401, 0, 0, stream, &none));
    OK(cudamem_allocate(arena, 600, 0, 0, stream, &foreign));
    REFUSED(INVALID_VALUE, "comes from elsewhere", cudamem_deallocate(checked, foreign, 600, 0, 0, stream));
    REFUSED(INVALID_VALUE, "comes from elsewhere", cudamem_deallocate(checked, foreign, 0, 0, 0, stream));
    REFUSED(INVALID_VALUE, "allocated as 600 B", cudamem_deallocate(checked, block, 601, 0, 0, stream));
    REFUSED(INVALID_VALUE, "lies in the block", cudamem_deallocate(checked, (char *)block + 256, 4, 0, 0, stream));
    OK(cudamem_deallocate(checked, block, 600, 0, 0, stream));
    REFUSED(INVALID_VALUE, "freed twice", cudamem_deallocate(checked, block, 600, 0, 0, stream));
    OK(cudamem_allocate(checked, 300, 0, 0, stream, &block));
    OK(cudamem_deallocate(checked, block, 0, 0, 0, stream));
    OK(cudamem_allocate(strict, 300, 0, 0, stream, &block));
    REFUSED(INVALID_VALUE, "its own stream", cudamem_deallocate(strict, block, 300, 0, 0, other));
    OK(cudamem_deallocate_after(strict, block, 300, 0, 0, stream, &other, 1));
    OK(cudamem_deallocate(arena, foreign, 600, 0, 0, stream));

    OK(cudamem_statistics_read(counted, &counts, sizeof counts));
    WANT(counts.bytes == 0 && counts.allocations == 0 && counts.bytes_peak == 600);
    WANT(counts.bytes_total == 1200 && counts.allocations_total == 3 && counts.allocations_peak == 1);
    REFUSED(INVALID_VALUE, "cudamem_statistics_create", cudamem_statistics_read(arena, &counts, sizeof counts));
    DRIVER(stream_synchronize(stream));
    DRIVER(stream_synchronize(other));
    cudamem_resource_release(checked);
    cudamem_resource_release(strict);
    cudamem_resource_release(counted);
    cudamem_resource_release(arena);
    end_stream(stream);
    end_stream(other);
}

THREAD(work, arena) {
    stream_t stream;
    void *block;
    DRIVER(set_current(context));
    stream = new_stream();
    for (unsigned round = 0; round < 500; round++) {
        size_t words = 64 + round * 16;
        /* Its own stream, and all threads' one. */
        stream_t used = round % 5 == 0 ? NULL : stream;
        OK(cudamem_allocate(arena, words * 4, 0, 0, used, &block));
        fill(block, round, words, used);
        if (round % 50 == 0) {
            expect(block, round, words, used);
        }
        OK(cudamem_deallocate(arena, block, words * 4, 0, 0, used));
    }
    DRIVER(stream_synchronize(stream));
    WANT(strcmp(cudamem_last_error_message(), "") == 0);
    REFUSED(INVALID_VALUE, "`count` is null", cudamem_device_count(NULL));
    end_stream(stream);
    return 0;
}

static void threads(void) {
    thread_t all[4];
    cudamem_resource *arena;
    cudamem_arena_stats stats;
    OK(cudamem_arena_create(0, NULL, &arena));
    for (int at = 0; at < 4; at++) {
        want(start_thread(&all[at], work, arena), "a thread", __LINE__);
    }
    for (int at = 0; at < 4; at++) {
        want(join_thread(all[at]), "its end", __LINE__);
    }
    DRIVER(stream_synchronize(NULL));
    OK(cudamem_arena_read_stats(arena, &stats, sizeof stats));
    WANT(stats.live == 0);
    cudamem_resource_release(arena);
}

/* What only the simulated driver has: failures on demand, and reports of wrong order. */
static void faults(void) {
    uint64_t (*fail)(const char *, uint64_t, uint32_t);
    void (*clear)(void);
    uint64_t (*reports)(void);
    size_t (*report)(uint64_t, char *, size_t);
    cudamem_resource *pool, *arena;
    stream_t stream;
    void *block;
    char text[500];
    if (address_in(driver, "simcuda_fail") == NULL) {
        return;
    }
    find(&fail, "simcuda_fail");
    find(&clear, "simcuda_fail_clear");
    find(&reports, "simcuda_reports");
    find(&report, "simcuda_report");
    stream = new_stream();
    OK(cudamem_pool_create(0, NULL, &pool));
    OK(cudamem_arena_create(0, NULL, &arena));
    WANT(fail("cuMemAllocFromPoolAsync", 1, 2) != 0);
    REFUSED(OUT_OF_MEMORY, "", cudamem_allocate(pool, 1000, 0, 0, stream, &block));
    WANT(block == NULL && cudamem_last_error_driver_code() == 2);
    WANT(fail("cuMemAllocFromPoolAsync", 1, 999) != 0);
    REFUSED(OTHER, "", cudamem_allocate(pool, 1000, 0, 0, stream, &block));
    WANT(cudamem_last_error_driver_code() == 999);
    /* An arena asks again for less, and once unused memory is given back. */
    for (uint64_t nth = 1; nth <= 20; nth++) {
        WANT(fail("cuMemCreate", nth, 2) != 0);
    }
    REFUSED(OUT_OF_MEMORY, "", cudamem_allocate(arena, 1000, 0, 0, stream, &block));
    WANT(block == NULL && cudamem_last_error_driver_code() == 2);
    clear();
    OK(cudamem_allocate(arena, 1000, 0, 0, stream, &block));
    OK(cudamem_deallocate(arena, block, 1000, 0, 0, stream));
    OK(cudamem_allocate(pool, 1000, 0, 0, stream, &block));
    find(&fail, "simcuda_fail_without_effect");
    /* Once it is made again, in case that a capture which is over was the reason. */
    WANT(fail("cuMemFreeAsync", 1, 1) != 0 && fail("cuMemFreeAsync", 2, 1) != 0);
    WANT(cudamem_deallocate(pool, block, 1000, 0, 0, stream) == CUDAMEM_STATUS_INVALID_VALUE);
    WANT(cudamem_last_error_had_no_effect() == 1);
    OK(cudamem_deallocate(pool, block, 1000, 0, 0, stream));
    DRIVER(stream_synchronize(stream));
    cudamem_resource_release(arena);
    cudamem_resource_release(pool);
    end_stream(stream);
    if (report(0, text, sizeof text) > 0) {
        fprintf(stderr, "the sanitizer reports: %s\n", text);
    }
    WANT(reports() == 0);
}

/* Copies, and a stream that waits for another one. */
static void copies(void) {
    enum { WORDS = 1 << 18 };
    static unsigned from[WORDS], to[WORDS];
    cudamem_resource *arena;
    stream_t first = new_stream(), second = new_stream();
    void *block;
    int device = -1;
    OK(cudamem_arena_create(0, NULL, &arena));
    OK(cudamem_allocate(arena, sizeof from, 0, 0, first, &block));
    for (unsigned i = 0; i < WORDS; i++) {
        from[i] = 3 * i;
    }
    OK(cudamem_copy_to_device(block, from, sizeof from, 0, first));
    memset(from, 0, sizeof from);
    OK(cudamem_stream_wait(0, second, first));
    OK(cudamem_stream_wait(0, second, second));
    OK(cudamem_copy_to_host(to, block, sizeof to, 0, second));
    for (unsigned i = 0; i < WORDS; i++) {
        WANT(to[i] == 3 * i);
    }
    OK(cudamem_copy_to_host(NULL, NULL, 0, 0, second));
    REFUSED(INVALID_VALUE, "a pointer is null", cudamem_copy_to_host(NULL, block, 8, 0, second));
    OK(cudamem_fill((char *)block + 4, 7, 8, 0, second));
    OK(cudamem_copy_to_host(to, block, sizeof to, 0, second));
    WANT(to[0] == 0 && to[1] == 0x07070707 && to[2] == 0x07070707 && to[3] == 9);
    OK(cudamem_fill(NULL, 7, 0, 0, second));
    REFUSED(INVALID_VALUE, "a pointer is null", cudamem_fill(NULL, 7, 1, 0, second));
    OK(cudamem_pointer_device((char *)block + 1, &device));
    WANT(device == 0);
    REFUSED(INVALID_VALUE, "knows no memory", cudamem_pointer_device(&device, &device));
    REFUSED(INVALID_VALUE, "`device` is null", cudamem_pointer_device(block, NULL));
    REFUSED(INVALID_VALUE, "numbered from 0", cudamem_stream_wait(-3, second, first));
    OK(cudamem_stream_wait(0, first, second));
    OK(cudamem_stream_wait(0, CUDAMEM_STREAM_LEGACY, first));
    OK(cudamem_stream_wait(0, CUDAMEM_STREAM_PER_THREAD, first));
    OK(cudamem_deallocate(arena, block, sizeof from, 0, 0, first));
    end_stream(first);
    end_stream(second);
    cudamem_resource_release(arena);
}

/* What stands for Python, and notes its calls. */
static char python_calls[20];

static void note(char call) {
    python_calls[strlen(python_calls)] = call;
}

static int python_lock(void) {
    note('l');
    return 3;
}

static void python_unlock(int state) {
    note(state == 3 ? 'u' : '?');
}

static void python_fetch(void **kind, void **value, void **trace) {
    note('f');
    *kind = python_calls, *value = python_calls + 1, *trace = NULL;
}

static void python_restore(void *kind, void *value, void *trace) {
    note(kind == python_calls && value == python_calls + 1 && trace == NULL ? 'r' : '?');
}

static void python_deleter(void *tensor) {
    note(tensor == python_calls ? 'd' : '?');
}

static void python_destructor(void *capsule) {
    note(capsule == python_calls ? 'c' : '?');
}

static void python(void) {
    cudamem_python_delete(python_calls);
    cudamem_python_capsules_with(python_lock, python_unlock, python_fetch, python_restore, python_deleter,
                                 python_destructor);
    cudamem_python_delete(python_calls);
    cudamem_python_destroy(python_calls);
    WANT(strcmp(python_calls, "lfdrulfcru") == 0);
    cudamem_python_capsules_with(python_lock, python_unlock, python_fetch, python_restore, NULL, NULL);
    cudamem_python_delete(python_calls);
    cudamem_python_destroy(python_calls);
    WANT(strlen(python_calls) == 10);
}

/* How often a text stands in a file. */
static int count_in(const char *path, const char *text) {
    static char line[1 << 20];
    int found = 0;
    FILE *file = fopen(path, "r");
    WANT(file != NULL);
    while (fgets(line, sizeof line, file) != NULL) {
        found += strstr(line, text) != NULL;
    }
    fclose(file);
    return found;
}

static size_t frames(char *text, size_t size) {
    static const char here[] = "model.c:7 forward;train.c:3";
    WANT(size >= sizeof here);
    memcpy(text, here, sizeof here - 1);
    return sizeof here - 1;
}

static void recorders(const char *folder) {
    cudamem_recorder *ring, *written, *none;
    cudamem_resource *arena, *pool;
    cudamem_arena_options arena_options;
    cudamem_pool_options pool_options;
    stream_t stream = new_stream();
    void *block, *other;
    uint64_t dropped = 1;
    char path[500], second[500], file[500];
    snprintf(path, sizeof path, "%s/written.csv", folder);
    snprintf(second, sizeof second, "%s/ring.csv", folder);
    snprintf(file, sizeof file, "%s/ring.json", folder);

    REFUSED(INVALID_VALUE, "`entries` is 0", cudamem_recorder_create(0, &none));
    WANT(none == NULL);
    REFUSED(INVALID_VALUE, "`path` is null", cudamem_recorder_create_file(NULL, &none));
    REFUSED(OTHER, "/no/such/place", cudamem_recorder_create_file("/no/such/place", &none));
    OK(cudamem_recorder_create(1000, &ring));
    OK(cudamem_recorder_create_file(path, &written));
    cudamem_arena_options_init(&arena_options, sizeof arena_options);
    cudamem_pool_options_init(&pool_options, sizeof pool_options);
    arena_options.recorder = ring;
    pool_options.recorder = written;
    OK(cudamem_arena_create(0, &arena_options, &arena));
    OK(cudamem_pool_create(0, &pool_options, &pool));
    REFUSED(INVALID_VALUE, "`record` and a recorder", cudamem_torch_use_arena(&arena_options, file, 0));
    REFUSED(INVALID_VALUE, "`record` and a recorder", cudamem_torch_use_pool(&pool_options, file, 0));

    OK(cudamem_allocate(arena, 1000, 0, 0, stream, &block));
    OK(cudamem_deallocate(arena, block, 1000, 0, 0, stream));
    cudamem_recorder_frames_with(frames);
    OK(cudamem_allocate(arena, 2000, 0, 0, stream, &block));
    OK(cudamem_allocate(pool, 3000, 0, 0, stream, &other));
    cudamem_recorder_frames_with(NULL);
    OK(cudamem_deallocate(arena, block, 2000, 0, 0, stream));
    OK(cudamem_deallocate(pool, other, 3000, 0, 0, stream));

    OK(cudamem_recorder_write(ring, second));
    WANT(count_in(second, ",map,") == 1 && count_in(second, ",allocate,") == 2 && count_in(second, ",free,") == 2);
    WANT(count_in(second, "model.c:7 forward;train.c:3") == 1 && count_in(second, ",2000,") == 2);
    OK(cudamem_allocate(arena, 5000, 0, 0, stream, &block));
    OK(cudamem_snapshot_write(arena, ring, file));
    WANT(count_in(file, "active_allocated") == 1 && count_in(file, "5000") == 1);
    OK(cudamem_recorder_write_timeline(ring, file));
    WANT(count_in(file, "traceEvents") == 1);
    OK(cudamem_snapshot_write(pool, NULL, file));
    REFUSED(INVALID_VALUE, "file of its own", cudamem_snapshot_write(pool, written, file));
    REFUSED(INVALID_VALUE, "`path` is null", cudamem_snapshot_write(arena, NULL, NULL));
    OK(cudamem_deallocate(arena, block, 5000, 0, 0, stream));
    OK(cudamem_recorder_dropped(ring, &dropped));
    WANT(dropped == 0);
    REFUSED(INVALID_VALUE, "file of its own", cudamem_recorder_write(written, second));
    OK(cudamem_recorder_end(written));
    OK(cudamem_recorder_end(ring));
    WANT(count_in(path, ",allocate,") == 1 && count_in(path, ",free,") == 1 && count_in(path, "forward") == 1);
    cudamem_recorder_release(ring);
    cudamem_recorder_release(written);
    cudamem_recorder_release(NULL);
    OK(cudamem_allocate(arena, 1000, 0, 0, stream, &block));
    OK(cudamem_deallocate(arena, block, 1000, 0, 0, stream));
    end_stream(stream);
    cudamem_resource_release(arena);
    cudamem_resource_release(pool);
}

int main(int arguments, char **argument) {
    int count = 0, version = 0;
    uint64_t free_bytes, total;
    want(arguments == 2, "one argument", __LINE__);
    mistakes();
    start();
    OK(cudamem_device_count(&count));
    OK(cudamem_driver_version(&version));
    OK(cudamem_device_memory(0, &free_bytes, &total));
    WANT(count > 0 && version >= 11020 && free_bytes <= total && total > 0);
    OK(cudamem_device_memory(0, NULL, NULL));
    options_grow();
    pools();
    arenas();
    over_a_pool();
    adaptors();
    threads();
    copies();
    python();
    recorders(argument[1]);
    faults();
    puts("done");
    return 0;
}
