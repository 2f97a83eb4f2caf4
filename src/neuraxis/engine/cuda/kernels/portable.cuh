// What a compiler for GPUs and the twin on the CPU (tests) each call by another name.
#ifdef NEURAXIS_TWIN
#include "twin.h"
#else
extern __shared__ int4 shared_room_[];
#define SHARED_ROOM(name) char *name = (char *)shared_room_
#define IN_A_TURN()
#endif

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

__device__ inline float bits_to_f(u32 bits) { return __uint_as_float(bits); }
__device__ inline u32 f_to_bits(float value) { return __float_as_uint(value); }

// A line of mail: 16 bytes that are written and read as one. `last` orders it after what the block wrote before.
#ifndef NEURAXIS_TWIN
__device__ inline void write_line(u64 *at, u64 low, u64 high, bool last)
{
    if (last)
        __threadfence();
    asm volatile("{ .reg .b128 line; mov.b128 line, {%1, %2}; st.relaxed.gpu.global.b128 [%0], line; }"
                 :: "l"(at), "l"(low), "l"(high) : "memory");
}

__device__ inline void read_line(const u64 *at, u64 &low, u64 &high)
{
    asm volatile("{ .reg .b128 line; ld.relaxed.gpu.global.b128 line, [%2]; mov.b128 {%0, %1}, line; }"
                 : "=l"(low), "=l"(high) : "l"(at) : "memory");
}

// What another block wrote before its line: not from this processor's own cache.
__device__ inline u32 read_fresh(const u16 *at)
{
    u16 value;
    asm volatile("ld.relaxed.gpu.global.u16 %0, [%1];" : "=h"(value) : "l"(at) : "memory");
    return value;
}


// Copy 16 bytes from the card's memory to shared memory; they are there after `wait_for_copies`.
__device__ inline void copy_by_itself(void *to, const void *from)
{
    u32 at = (u32)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(at), "l"(from) : "memory");
}

__device__ inline void wait_for_copies()
{
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncwarp();
}

__device__ inline i64 now_in_ticks() { return clock64(); }
__device__ inline void after_line() { __threadfence(); }
#endif

// --- arithmetic that every machine does alike (see engine/arithmetic.py) -----------------------------------

template <typename T> __device__ inline T min_of(T a, T b) { return b < a ? b : a; }
template <typename T> __device__ inline T max_of(T a, T b) { return b > a ? b : a; }
template <typename T> __device__ inline T absolute(T a) { return a < 0 ? (T)(0 - (u64)a) : a; }

// A number as another kind. What no whole number is near, and what is none, becomes what CPUs make of it.
template <typename To, typename From> __device__ inline To converted(From x) { return (To)x; }
template <> __device__ inline i64 converted<i64, double>(double x) { return x >= -0x1p63 && x < 0x1p63 ? (i64)x : (i64)(1ULL << 63); }
template <> __device__ inline i64 converted<i64, float>(float x) { return converted<i64, double>((double)x); }
template <> __device__ inline int converted<int, double>(double x) { return x > -0x1.00000002p31 && x < 0x1p31 ? (int)x : (int)(1u << 31); }
template <> __device__ inline int converted<int, float>(float x) { return converted<int, double>((double)x); }

template <typename T> __device__ inline T floor_divided(T a, T b)
{
    if (b == 0)
        return 0;
    T q = a / b;
    return (q * b != a && (a < 0) != (b < 0)) ? q - 1 : q;
}

template <typename T> __device__ inline T floor_remainder(T a, T b) { return b == 0 ? 0 : a - floor_divided<T>(a, b) * b; }

// Of floats as Python has it, from the exact remainder.
template <typename T> struct Divided {
    T quotient, remainder;
};

template <typename T> __device__ inline Divided<T> divided(T a, T b, T remainder)
{
    Divided<T> found{(a - remainder) / b, remainder};
    if (remainder != 0) {
        if ((b < 0) != (remainder < 0)) {
            found.quotient -= 1;
            found.remainder += b;
        }
    } else
        found.remainder = b < 0 ? (T)-0.0 : (T)0.0;
    T whole = (T)floor(found.quotient);
    if (found.quotient < 0 || found.quotient > 0)
        found.quotient = found.quotient - whole > (T)0.5 ? whole + 1 : whole;
    else
        found.quotient = found.quotient * found.quotient * a / b;  // a zero with a sign, or none at all
    return found;
}

template <> __device__ inline float floor_divided<float>(float a, float b) { return b == 0 ? a / b : divided<float>(a, b, fmodf(a, b)).quotient; }
template <> __device__ inline double floor_divided<double>(double a, double b) { return b == 0 ? a / b : divided<double>(a, b, fmod(a, b)).quotient; }
template <> __device__ inline float floor_remainder<float>(float a, float b) { return b == 0 ? fmodf(a, b) : divided<float>(a, b, fmodf(a, b)).remainder; }
template <> __device__ inline double floor_remainder<double>(double a, double b) { return b == 0 ? fmod(a, b) : divided<double>(a, b, fmod(a, b)).remainder; }

__device__ inline float sqrt_f(float x) { return sqrtf(x); }

__device__ inline float exp_f(float x)
{
    x = min_of<float>(max_of<float>(x, -87.0f), 88.0f);
    float n = (x * bits_to_f(0x3fb8aa3bu) + 12582912.0f) - 12582912.0f;
    float r = (x - n * 0.693359375f) - n * E_LN2_LOW;
    float p = ((((E_E0 * r + E_E1) * r + E_E2) * r + E_E3) * r + E_E4) * r + E_E5;
    p = (p * (r * r) + r) + 1.0f;
    return p * bits_to_f((u32)(((int)n + 127) << 23));
}

__device__ inline float log_f(float x)
{
    u32 bits = f_to_bits(max_of<float>(x, bits_to_f(0x00800000u)));
    int exponent = (int)(bits >> 23) - 126;
    float m = bits_to_f((bits & 0x007FFFFFu) | 0x3F000000u);
    bool small = m < E_SQRT_HALF;
    float e = small ? (float)(exponent - 1) : (float)exponent;
    m = small ? (m + m) - 1.0f : m - 1.0f;
    float z = m * m;
    float p = (((((((E_L0 * m + E_L1) * m + E_L2) * m + E_L3) * m + E_L4) * m + E_L5) * m + E_L6) * m + E_L7) * m + E_L8;
    p = (p * m) * z;
    p = p + e * E_LN2_LOW;
    p = p - 0.5f * z;
    return (m + p) + e * 0.693359375f;
}

__device__ inline float power_f(float x, float y) { return x > 0.0f ? exp_f(y * log_f(x)) : 0.0f; }

// --- random numbers (see engine/random.py) ------------------------------------------------------------------

#define GOLDEN 0x9E3779B97F4A7C15ull

__device__ inline u64 mix(u64 x)
{
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

__device__ inline u64 key_of(u64 seed, u64 purpose, u64 owner, u64 index)
{
    u64 key = mix(seed + GOLDEN * purpose);
    key = mix((key ^ owner) + GOLDEN);
    return mix((key ^ index) + GOLDEN);
}

__device__ inline u64 number(u64 key, i64 i) { return mix(key + GOLDEN * (u64)(i + 1)); }

// A step of xoroshiro64*: 64 bits of state, 32 bits out.
__device__ inline int draw(u32 &s0, u32 &s1)
{
    int random = (int)(s0 * 0x9E3779BBu);
    s1 ^= s0;
    s0 = ((s0 << 26) | (s0 >> 6)) ^ s1 ^ (s1 << 9);
    s1 = (s1 << 13) | (s1 >> 19);
    return random;
}
