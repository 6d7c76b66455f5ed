/* What the program needs of the system beside ISO C: libraries that are opened while it runs, and threads. */

#ifndef SYSTEM_H
#define SYSTEM_H

#include <string.h>

#ifdef _WIN32

#define WIN32_LEAN_AND_MEAN
#include <windows.h>

#define DRIVER_FILE "nvcuda.dll"

typedef HANDLE thread_t;

/* The function of a thread; it returns 0. */
#define THREAD(name, argument) static DWORD WINAPI name(void *argument)

static void *open_library(const char *path) {
    return LoadLibraryA(path);
}

static void *address_in(void *library, const char *name) {
    FARPROC function = GetProcAddress(library, name);
    void *address;
    memcpy(&address, &function, sizeof address);
    return address;
}

static int start_thread(thread_t *thread, LPTHREAD_START_ROUTINE body, void *argument) {
    *thread = CreateThread(NULL, 0, body, argument, 0, NULL);
    return *thread != NULL;
}

static int join_thread(thread_t thread) {
    return WaitForSingleObject(thread, INFINITE) == WAIT_OBJECT_0 && CloseHandle(thread);
}

#else

#include <dlfcn.h>
#include <pthread.h>

#define DRIVER_FILE "libcuda.so.1"

typedef pthread_t thread_t;

#define THREAD(name, argument) static void *name(void *argument)

static void *open_library(const char *path) {
    return dlopen(path, RTLD_NOW);
}

static void *address_in(void *library, const char *name) {
    return dlsym(library, name);
}

static int start_thread(thread_t *thread, void *(*body)(void *), void *argument) {
    return pthread_create(thread, NULL, body, argument) == 0;
}

static int join_thread(thread_t thread) {
    return pthread_join(thread, NULL) == 0;
}

#endif

#endif
