// A stand-in for libnixl_capi.so: it tells the test what it is told, fails when it is asked to, and does nothing else.
// Built by the test, under NIXL's soname, so that nixl-sys takes it for the library.

#include <stdint.h>
#include <stdlib.h>

enum { SUCCESS = 0, BACKEND = -2, MOST = 16 };

typedef void (*listener)(int is_registration, uintptr_t address, size_t bytes, uint64_t device, int memory_type);

static listener listening;
static int registrations_to_refuse;
static int lists_to_refuse;
static int options_to_refuse;
static int lists_alive;
static int agents_alive;

struct list {
    int memory_type;
    int count;
    struct {
        uintptr_t address;
        size_t bytes;
        uint64_t device;
    } entries[MOST];
};

void stand_in_listen(listener to) { listening = to; }
void stand_in_refuse_registrations(int how_many) { registrations_to_refuse = how_many; }
void stand_in_refuse_lists(int how_many) { lists_to_refuse = how_many; }
void stand_in_refuse_options(int how_many) { options_to_refuse = how_many; }
int stand_in_lists_alive(void) { return lists_alive; }
int stand_in_agents_alive(void) { return agents_alive; }

int nixl_capi_create_agent(const char *name, void **agent) {
    (void)name;
    agents_alive++;
    *agent = malloc(1);
    return SUCCESS;
}

int nixl_capi_destroy_agent(void *agent) {
    agents_alive--;
    free(agent);
    return SUCCESS;
}

static int create(int memory_type, void **made) {
    if (lists_to_refuse > 0) {
        lists_to_refuse--;
        return BACKEND;
    }
    struct list *list = calloc(1, sizeof *list);
    list->memory_type = memory_type;
    lists_alive++;
    *made = list;
    return SUCCESS;
}

static int clear(struct list *list) {
    list->count = 0;
    return SUCCESS;
}

static int add(struct list *list, uintptr_t address, size_t bytes, uint64_t device) {
    if (list->count == MOST) {
        return BACKEND;
    }
    list->entries[list->count].address = address;
    list->entries[list->count].bytes = bytes;
    list->entries[list->count++].device = device;
    return SUCCESS;
}

static int destroy(void *list) {
    lists_alive--;
    free(list);
    return SUCCESS;
}

int nixl_capi_create_reg_dlist(int memory_type, void **made) { return create(memory_type, made); }
int nixl_capi_reg_dlist_clear(void *list) { return clear(list); }
int nixl_capi_destroy_reg_dlist(void *list) { return destroy(list); }
int nixl_capi_reg_dlist_add_desc(void *list, uintptr_t address, size_t bytes, uint64_t device, const void *data, size_t len) {
    (void)data;
    (void)len;
    return add(list, address, bytes, device);
}

int nixl_capi_create_xfer_dlist(int memory_type, void **made) { return create(memory_type, made); }
int nixl_capi_xfer_dlist_clear(void *list) { return clear(list); }
int nixl_capi_destroy_xfer_dlist(void *list) { return destroy(list); }
int nixl_capi_xfer_dlist_add_desc(void *list, uintptr_t address, size_t bytes, uint64_t device) {
    return add(list, address, bytes, device);
}

int nixl_capi_create_opt_args(void **made) {
    if (options_to_refuse > 0) {
        options_to_refuse--;
        return BACKEND;
    }
    *made = malloc(1);
    return SUCCESS;
}

int nixl_capi_destroy_opt_args(void *options) {
    free(options);
    return SUCCESS;
}

static void tell(int is_registration, const struct list *list) {
    for (int i = 0; listening && i < list->count; i++) {
        listening(is_registration, list->entries[i].address, list->entries[i].bytes, list->entries[i].device,
                  list->memory_type);
    }
}

int nixl_capi_register_mem(void *agent, void *list, void *options) {
    (void)agent;
    (void)options;
    if (registrations_to_refuse > 0) {
        registrations_to_refuse--;
        return BACKEND;
    }
    tell(1, list);
    return SUCCESS;
}

int nixl_capi_deregister_mem(void *agent, void *list, void *options) {
    (void)agent;
    (void)options;
    tell(0, list);
    return SUCCESS;
}
