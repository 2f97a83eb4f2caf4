// The kernels on a CPU: every thread of the grid is a fiber, and all fibers take turns in one thread of the machine. So the
// very text that runs on a GPU runs here, barriers and messages included, in an order that is always the same.
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#define __global__
#define __device__
#define __constant__
#define __launch_bounds__(...)
#define __noinline__ __attribute__((noinline))

struct Index { unsigned x; };

namespace twin {
struct Fiber {
    ucontext_t context;
    Index thread, block;
    bool done;
    std::vector<char> stack;
};
struct Barrier { unsigned waiting = 0, turn = 0; };

inline Fiber *now;
inline ucontext_t home;
inline std::vector<Fiber> fibers;
inline std::vector<Barrier> blocks, warps;
inline std::vector<std::vector<char>> rooms;
inline std::vector<unsigned> left;  // threads of a block that have not ended
inline Index block_size, grid_size;
inline std::function<void()> kernel;

inline void yield() { swapcontext(&now->context, &home); }

inline void meet(Barrier &barrier, unsigned others)
{
    unsigned turn = barrier.turn;
    if (++barrier.waiting == others) {
        barrier.waiting = 0;
        barrier.turn++;
        return;
    }
    while (barrier.turn == turn)
        yield();
}

inline void begin()
{
    kernel();
    now->done = true;
    swapcontext(&now->context, &home);
}

// `backwards`: who comes first in a turn is left to chance on a GPU, so the last one may.
inline void run(unsigned grid, unsigned block, size_t shared, unsigned warp, bool backwards)
{
    grid_size.x = grid;
    block_size.x = block;
    blocks.assign(grid, Barrier());
    warps.assign((size_t)grid * ((block + warp - 1) / warp), Barrier());
    rooms.assign(grid, std::vector<char>(shared + 64, 0x5a));
    fibers.clear();
    fibers.resize((size_t)grid * block);
    for (unsigned i = 0; i < fibers.size(); i++) {
        Fiber &fiber = fibers[i];
        fiber.thread.x = i % block;
        fiber.block.x = i / block;
        fiber.done = false;
        fiber.stack.resize(64 << 10);
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.data();
        fiber.context.uc_stack.ss_size = fiber.stack.size();
        fiber.context.uc_link = nullptr;
        makecontext(&fiber.context, begin, 0);
    }
    for (bool going = true; going;) {
        going = false;
        for (size_t i = 0; i < fibers.size(); i++) {
            Fiber &fiber = fibers[backwards ? fibers.size() - 1 - i : i];
            if (!fiber.done) {
                now = &fiber;
                swapcontext(&home, &fiber.context);
                going = true;
            }
        }
    }
}
}  // namespace twin

#define threadIdx (twin::now->thread)
#define blockIdx (twin::now->block)
#define blockDim (twin::block_size)
#define gridDim (twin::grid_size)
#define SHARED_ROOM(name) char *name = (char *)(((uintptr_t)twin::rooms[blockIdx.x].data() + 15) / 16 * 16)
#define SPIN_WAIT() twin::yield()
#define __syncthreads() twin::meet(twin::blocks[blockIdx.x], twin::block_size.x)
#define __syncwarp() \
    twin::meet(twin::warps[blockIdx.x * ((twin::block_size.x + WARP - 1) / WARP) + threadIdx.x / WARP], WARP)

inline float __uint_as_float(unsigned bits) { float value; memcpy(&value, &bits, 4); return value; }
inline unsigned __float_as_uint(float value) { unsigned bits; memcpy(&bits, &value, 4); return bits; }
inline double __longlong_as_double(long long bits) { double value; memcpy(&value, &bits, 8); return value; }
inline int __clz(int value) { return __builtin_clz((unsigned)value); }
inline int __popcll(unsigned long long value) { return __builtin_popcountll(value); }
template <typename T> inline T atomicMax(T *at, T value)
{
    T before = *at;
    *at = before < value ? value : before;
    return before;
}

template <typename T> inline T atomicAdd(T *at, T value)
{
    T before = *at;
    *at = (T)((unsigned long long)before + (unsigned long long)value);
    return before;
}
inline int atomicExch(int *at, int value) { int before = *at; *at = value; return before; }
inline void write_message(unsigned long long *at, unsigned long long low, unsigned long long high, bool) { at[0] = low; at[1] = high; }
inline void read_message(const unsigned long long *at, unsigned long long &low, unsigned long long &high) { low = at[0]; high = at[1]; }
inline unsigned read_fresh(const unsigned short *at) { return *at; }
inline float read_fresh(const float *at) { return *at; }
template <typename T> inline T read_only(const T *at) { return *at; }
inline long long now_in_ticks() { return 0; }
inline void after_message() {}
inline void copy_async(void *to, const void *from) { memcpy(to, from, 16); }
#define wait_for_copies() __syncwarp()
