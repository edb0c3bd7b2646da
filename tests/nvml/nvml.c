/* Stands in for the NVIDIA driver's libnvidia-ml.so.1: NVML's own symbols and structures, answered from a text file
 * that $FAKE_NVML_STATE names and that is read again at each call. One statement a line:
 *
 *   gpu INDEX UUID TOTAL BASE RESERVED NAME      BASE: in use by nobody that is listed. RESERVED: the driver's own
 *   slice INDEX PLACE UUID TOTAL BASE NAME       of the GPU with that INDEX, which is in MIG mode then
 *   process UUID KIND PID BYTES [option...]      KIND: compute or graphics. BYTES: - is "not available"
 *   claims FILE BYTES LINGER [option...]         each line "WORD PID" of FILE: PID holds BYTES on the devices that its
 *                                                CUDA_VISIBLE_DEVICES names while it lives, and for LINGER more
 *                                                readings of a device's memory (-1: for ever)
 *   gauge FUNCTION UUID VALUE STEP               what FUNCTION says of a device: VALUE, and STEP more at each further call
 *   fail FUNCTION CODE UUID [option...]          UUID: - is any. FUNCTION without "nvmlDevice" and "Get", "*" is all
 *   block FUNCTION UUID [option...]              never returns
 *
 * Options: after=FILE (only once it exists) until=FILE (only while it does not) from=K (from the K-th call of FUNCTION)
 * readings=K (only for the first K readings of the device's memory) shift=N (pids are listed as pid + N, as of another
 * PID namespace) unlisted (the dead are not listed as processes). Sizes are bytes. Not thread-safe.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SUCCESS 0
#define INVALID_ARGUMENT 2
#define NOT_SUPPORTED 3
#define NOT_FOUND 6
#define INSUFFICIENT_SIZE 7
#define DRIVER_NOT_LOADED 9
#define NOT_AVAILABLE (~0ULL)
#define MAX 64

typedef unsigned long long u64;
typedef struct { u64 total, free, used; } Memory;
typedef struct { unsigned version; u64 total, reserved, free, used; } MemoryV2;
typedef struct { unsigned pid; u64 bytes; unsigned gpu_instance, compute_instance; } Process;
typedef struct { char after[256], until[256]; long from, readings, shift; int unlisted; } Options;
typedef struct { char uuid[96], name[96]; int index, place; u64 total, base, reserved; long readings; } Device;
typedef struct { char file[256]; u64 bytes; long linger; Options options; } Claims;
typedef struct { char uuid[96]; int graphics; Process process; Options options; } Listed;
typedef struct { char function[64], uuid[96]; int code, block; Options options; } Fault;
typedef struct { char function[64], uuid[96]; u64 value, step; } Gauge;
typedef struct { int pid; char devices[1024]; long died_at[MAX]; } Seen;

static Device devices[MAX];
static Claims claims[MAX];
static Listed listed[MAX];
static Fault faults[MAX];
static Gauge gauges[MAX];
static Seen seen[1024];
static int device_count, claims_count, listed_count, fault_count, gauge_count, seen_count;
static struct { char function[64], uuid[96]; long calls; } counted[MAX * 4];
static int counted_count;

static Seen *see(int pid);

static Options options_of(char *text) {
    Options found = {"", "", 0, 0, 0, 0};
    for (char *word = strtok(text, " \n"); word; word = strtok(NULL, " \n")) {
        sscanf(word, "after=%255s", found.after);
        sscanf(word, "until=%255s", found.until);
        sscanf(word, "from=%ld", &found.from);
        sscanf(word, "readings=%ld", &found.readings);
        sscanf(word, "shift=%ld", &found.shift);
        found.unlisted |= !strcmp(word, "unlisted");
    }
    return found;
}

static int in_force(const Options *options) {
    return (!*options->after || !access(options->after, F_OK)) && (!*options->until || access(options->until, F_OK));
}

static Device *device_named(const char *uuid) {
    for (int i = 0; i < device_count; i++)
        if (!strcmp(devices[i].uuid, uuid)) return &devices[i];
    return NULL;
}

/* A device keeps its place in `devices`, so handles and counts outlive a change of the file. */
static void add_device(const Device *given) {
    Device *old = device_named(given->uuid);
    long readings = old ? old->readings : 0;
    if (!old) old = &devices[device_count++];
    *old = *given;
    old->readings = readings;
}

static void read_line(char *line) {
    Device device = {.place = -1};
    Claims claim = {.linger = 0};
    Listed one = {.graphics = 0};
    Fault fault = {.code = 0};
    Gauge gauge;
    char kind[16], size[32];
    int at = 0;
    if (sscanf(line, "gpu %d %95s %llu %llu %llu %95[^\n]", &device.index, device.uuid, &device.total, &device.base,
               &device.reserved, device.name) == 6)
        add_device(&device);
    else if (sscanf(line, "slice %d %d %95s %llu %llu %95[^\n]", &device.index, &device.place, device.uuid,
                    &device.total, &device.base, device.name) == 6)
        add_device(&device);
    else if (sscanf(line, "process %95s %15s %u %31s%n", one.uuid, kind, &one.process.pid, size, &at) == 4) {
        one.graphics = !strcmp(kind, "graphics");
        one.process.bytes = *size == '-' ? NOT_AVAILABLE : strtoull(size, NULL, 10);
        one.options = options_of(line + at);
        listed[listed_count++] = one;
    } else if (sscanf(line, "claims %255s %llu %ld%n", claim.file, &claim.bytes, &claim.linger, &at) == 3) {
        claim.options = options_of(line + at);
        claims[claims_count++] = claim;
    } else if (sscanf(line, "gauge %63s %95s %llu %llu", gauge.function, gauge.uuid, &gauge.value, &gauge.step) == 4) {
        gauges[gauge_count++] = gauge;
    } else if (sscanf(line, "fail %63s %d %95s%n", fault.function, &fault.code, fault.uuid, &at) == 3) {
        fault.options = options_of(line + at);
        faults[fault_count++] = fault;
    } else if (sscanf(line, "block %63s %95s%n", fault.function, fault.uuid, &at) == 2) {
        fault.block = 1;
        fault.options = options_of(line + at);
        faults[fault_count++] = fault;
    } else if (*line != '\n') {
        fprintf(stderr, "fake nvml: can't read: %s", line);
        abort();
    }
}

/* At every call, whatever it is: of a process that has ended nobody can tell any more which devices it had. */
static void notice_claims(void) {
    for (int i = 0; i < claims_count; i++) {
        FILE *file = fopen(claims[i].file, "r");
        int pid;
        while (file && fscanf(file, "%*s %d", &pid) == 1) see(pid);
        if (file) fclose(file);
    }
}

static int load(void) {
    const char *path = getenv("FAKE_NVML_STATE");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[1024];
    if (!file) return DRIVER_NOT_LOADED;
    claims_count = listed_count = fault_count = gauge_count = 0;
    while (fgets(line, sizeof line, file)) read_line(line);
    fclose(file);
    notice_claims();
    return SUCCESS;
}

/* --- faults ------------------------------------------------------------- */

static long count_call(const char *function, const char *uuid) {
    for (int i = 0; i < counted_count; i++)
        if (!strcmp(counted[i].function, function) && !strcmp(counted[i].uuid, uuid)) return ++counted[i].calls;
    strcpy(counted[counted_count].function, function);
    strcpy(counted[counted_count].uuid, uuid);
    return counted[counted_count++].calls = 1;
}

/* Reads the file, then what is to happen to this call; SUCCESS if it is to be answered. */
static int begin(const char *function, const char *uuid) {
    int code = load();
    if (code) return code;
    long call = count_call(function, uuid);
    for (int i = 0; i < fault_count; i++) {
        Fault *fault = &faults[i];
        int meant = !strcmp(fault->function, "*") || !strcmp(fault->function, function);
        int here = !strcmp(fault->uuid, "-") || !strcmp(fault->uuid, uuid);
        if (!meant || !here || call < fault->options.from || !in_force(&fault->options)) continue;
        while (fault->block) pause();
        return fault->code;
    }
    return SUCCESS;
}

/* --- who holds what ------------------------------------------------------- */

static int lives(int pid) {
    char path[64], state = 'X';
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    if (fscanf(file, "%*d (%*[^)]) %c", &state) != 1) state = 'X';
    fclose(file);
    return state != 'Z' && state != 'X';
}

static void visible_devices(int pid, char *found, size_t room) {
    static const char NAME[] = "CUDA_VISIBLE_DEVICES=";
    static char all[1 << 16];
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/environ", pid);
    FILE *file = fopen(path, "r");
    size_t length = file ? fread(all, 1, sizeof all - 1, file) : 0;
    if (file) fclose(file);
    all[length] = 0;
    for (char *entry = all; entry < all + length; entry += strlen(entry) + 1)
        if (!strncmp(entry, NAME, sizeof NAME - 1)) snprintf(found, room, "%s", entry + sizeof NAME - 1);
}

static Seen *see(int pid) {
    for (int i = 0; i < seen_count; i++)
        if (seen[i].pid == pid) return &seen[i];
    Seen *one = &seen[seen_count++];
    one->pid = pid;
    visible_devices(pid, one->devices, sizeof one->devices);
    return one;
}

/* Whether the process counts on this device still; the dead do for `linger` readings from the first that finds them. */
static int counts(Seen *one, const Device *device, const Claims *claim, int *dead) {
    long *died_at = &one->died_at[device - devices];
    *dead = !lives(one->pid);
    if (!strstr(one->devices, device->uuid)) return 0;
    if (!*dead) return 1;
    if (!*died_at) *died_at = device->readings + 1;
    return claim->linger < 0 || device->readings + 1 - *died_at < claim->linger;
}

static int add(Process *found, int count, unsigned pid, u64 bytes) {
    for (int i = 0; i < count; i++)
        if (found[i].pid == pid) return found[i].bytes += bytes, count;
    found[count] = (Process){pid, bytes, ~0u, ~0u};
    return count + 1;
}

static int claimed(const Device *device, Process *found, int count, int listing) {
    for (int i = 0; i < claims_count; i++) {
        FILE *file = fopen(claims[i].file, "r");
        char word[256];
        int pid, dead;
        if (!file) continue;
        while (fscanf(file, "%255s %d", word, &pid) == 2)
            if (counts(see(pid), device, &claims[i], &dead) && !(dead && listing && claims[i].options.unlisted))
                count = add(found, count, pid + claims[i].options.shift, claims[i].bytes);
        fclose(file);
    }
    return count;
}

static int holders(const Device *device, Process *found, int graphics, int listing) {
    int count = graphics ? 0 : claimed(device, found, 0, listing);
    for (int i = 0; i < listed_count; i++) {
        Listed *one = &listed[i];
        int over = one->options.readings && device->readings >= one->options.readings;
        if (strcmp(one->uuid, device->uuid) || one->graphics != graphics || over || !in_force(&one->options)) continue;
        found[count++] = one->process;
    }
    return count;
}

static u64 used(const Device *device) {
    static Process found[1024];
    u64 sum = device->base;
    for (int graphics = 0; graphics < 2; graphics++) {
        int count = holders(device, found, graphics, 0);
        for (int i = 0; i < count; i++) sum += found[i].bytes == NOT_AVAILABLE ? 0 : found[i].bytes;
    }
    return sum;
}

static int list(const char *function, const Device *device, unsigned *room, Process *out, int graphics) {
    static Process found[1024];
    int code = begin(function, device->uuid);
    if (code) return code;
    unsigned count = holders(device, found, graphics, 1), fits = *room;
    *room = count;
    if (!count) return SUCCESS;
    if (!out || fits < count) return INSUFFICIENT_SIZE;
    memcpy(out, found, count * sizeof *out);
    return SUCCESS;
}

/* --- NVML's symbols --------------------------------------------------------- */

int nvmlInitWithFlags(unsigned flags) { return (void)flags, begin("Init", "-"); }

int nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(int code) { return (void)code, "an error of the fake driver"; }

int nvmlDeviceGetCount_v2(unsigned *count) {
    int code = begin("Count", "-");
    *count = 0;
    for (int i = 0; i < device_count; i++) *count += devices[i].place < 0;
    return code;
}

static int find(Device **found, int index, int place) {
    for (int i = 0; i < device_count; i++)
        if (devices[i].index == index && devices[i].place == place) return *found = &devices[i], SUCCESS;
    return NOT_FOUND;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **device) {
    int code = load();
    if (!code) code = find(device, index, -1);
    return code ? code : begin("HandleByIndex", (*device)->uuid);
}

int nvmlDeviceGetHandleByUUID(const char *uuid, Device **device) {
    int code = begin("HandleByUUID", uuid);
    if (code) return code;
    return (*device = device_named(uuid)) ? SUCCESS : NOT_FOUND;
}

int nvmlDeviceGetUUID(Device *device, char *out, unsigned room) {
    snprintf(out, room, "%s", device->uuid);
    return begin("UUID", device->uuid);
}

int nvmlDeviceGetName(Device *device, char *out, unsigned room) {
    snprintf(out, room, "%s", device->name);
    return begin("Name", device->uuid);
}

int nvmlDeviceGetMemoryInfo(Device *device, Memory *memory) {
    int code = begin("MemoryInfo", device->uuid);
    if (code) return code;
    u64 held = used(device) + device->reserved;
    *memory = (Memory){device->total, device->total - held, held};
    device->readings++;
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo_v2(Device *device, MemoryV2 *memory) {
    int code = begin("MemoryInfo_v2", device->uuid);
    if (code) return code;
    if (memory->version != (sizeof *memory | 2 << 24)) return INVALID_ARGUMENT;
    u64 held = used(device);
    memory->total = device->total;
    memory->reserved = device->reserved;
    memory->used = held;
    memory->free = device->total - held - device->reserved;
    device->readings++;
    return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(Device *device, unsigned *room, Process *out) {
    return list("ComputeRunningProcesses", device, room, out, 0);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(Device *device, unsigned *room, Process *out) {
    return list("GraphicsRunningProcesses", device, room, out, 1);
}

static int slices(const Device *device) {
    int count = 0;
    for (int i = 0; i < device_count; i++) count += devices[i].index == device->index && devices[i].place >= 0;
    return count;
}

int nvmlDeviceGetMigMode(Device *device, unsigned *current, unsigned *pending) {
    int code = begin("MigMode", device->uuid);
    *current = *pending = 1;
    return code ? code : slices(device) ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetMaxMigDeviceCount(Device *device, unsigned *count) {
    *count = 7;
    return begin("MaxMigDeviceCount", device->uuid);
}

int nvmlDeviceGetMigDeviceHandleByIndex(Device *device, unsigned place, Device **slice) {
    int code = begin("MigDeviceHandleByIndex", device->uuid);
    return code ? code : find(slice, device->index, place);
}

/* --- gauges: what is not set is not supported ----------------------------------- */

static int gauge(const char *function, const char *uuid, u64 *out) {
    int code = begin(function, uuid);
    if (code) return code;
    for (int i = 0; i < gauge_count; i++) {
        if (strcmp(gauges[i].function, function) || strcmp(gauges[i].uuid, uuid)) continue;
        long calls = 0;
        for (int at = 0; at < counted_count; at++)
            if (!strcmp(counted[at].function, function) && !strcmp(counted[at].uuid, uuid)) calls = counted[at].calls;
        return *out = gauges[i].value + gauges[i].step * (u64)(calls - 1), SUCCESS;
    }
    return NOT_SUPPORTED;
}

static int small(const char *function, const char *uuid, unsigned *out) {
    u64 wide = 0;
    int code = gauge(function, uuid, &wide);
    *out = (unsigned)wide;
    return code;
}

static int clock(const char *function, Device *device, int kind, unsigned *mhz) {
    char name[64];
    snprintf(name, sizeof name, "%s:%d", function, kind);
    return small(name, device->uuid, mhz);
}

int nvmlDeviceGetTotalEnergyConsumption(Device *device, u64 *mj) {
    return gauge("TotalEnergyConsumption", device->uuid, mj);
}

int nvmlDeviceGetPowerUsage(Device *device, unsigned *mw) { return small("PowerUsage", device->uuid, mw); }

int nvmlDeviceGetEnforcedPowerLimit(Device *device, unsigned *mw) {
    return small("EnforcedPowerLimit", device->uuid, mw);
}

int nvmlDeviceGetTemperature(Device *device, int sensor, unsigned *celsius) {
    return sensor ? INVALID_ARGUMENT : small("Temperature", device->uuid, celsius);
}

int nvmlDeviceGetClockInfo(Device *device, int kind, unsigned *mhz) { return clock("ClockInfo", device, kind, mhz); }

int nvmlDeviceGetMaxClockInfo(Device *device, int kind, unsigned *mhz) {
    return clock("MaxClockInfo", device, kind, mhz);
}

int nvmlDeviceGetCurrentClocksThrottleReasons(Device *device, u64 *mask) {
    return gauge("CurrentClocksThrottleReasons", device->uuid, mask);
}

int nvmlDeviceGetPersistenceMode(Device *device, unsigned *mode) {
    return small("PersistenceMode", device->uuid, mode);
}

int nvmlDeviceGetEccMode(Device *device, unsigned *current, unsigned *pending) {
    return *pending = 0, small("EccMode", device->uuid, current);
}

int nvmlSystemGetDriverVersion(char *out, unsigned room) {
    snprintf(out, room, "580.65");
    return begin("SystemDriverVersion", "-");
}

int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    *version = 13010;
    return begin("SystemCudaDriverVersion", "-");
}
