// Primitives that differ between CUDA and the emulation on the CPU (tests).
#ifdef NEURAXIS_TWIN
#include "twin.h"
#else
extern __shared__ int4 shared_room_[];
#define SHARED_ROOM(name) char *name = (char *)shared_room_
#define SPIN_WAIT()
#endif

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

__device__ inline float bits_to_f(u32 bits) { return __uint_as_float(bits); }
__device__ inline double bits_to_d(u64 bits) { return __longlong_as_double((i64)bits); }
__device__ inline u32 f_to_bits(float value) { return __float_as_uint(value); }

// A message: 16 bytes that are written and read atomically. `last` orders it after earlier writes of the block.
#ifndef NEURAXIS_TWIN
__device__ inline void write_message(u64 *at, u64 low, u64 high, bool last)
{
    if (last)
        __threadfence();
    asm volatile("{ .reg .b128 line; mov.b128 line, {%1, %2}; st.relaxed.gpu.global.b128 [%0], line; }"
                 :: "l"(at), "l"(low), "l"(high) : "memory");
}

__device__ inline void read_message(const u64 *at, u64 &low, u64 &high)
{
    asm volatile("{ .reg .b128 line; ld.relaxed.gpu.global.b128 line, [%2]; mov.b128 {%0, %1}, line; }"
                 : "=l"(low), "=l"(high) : "l"(at) : "memory");
}

// Read what another block wrote before its message, bypassing the L1 cache.
__device__ inline u32 read_fresh(const u16 *at)
{
    u16 value;
    asm volatile("ld.relaxed.gpu.global.u16 %0, [%1];" : "=h"(value) : "l"(at) : "memory");
    return value;
}

__device__ inline float read_fresh(const float *at)
{
    float value;
    asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(value) : "l"(at) : "memory");
    return value;
}

// Read what no kernel of the launch writes, so that loads can be in flight across other accesses.
template <typename T> __device__ inline T read_only(const T *at) { return __ldg(at); }

// Copy 16 bytes from global to shared memory asynchronously; complete after `wait_for_copies`.
__device__ inline void copy_async(void *to, const void *from)
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
__device__ inline void after_message() { __threadfence(); }
#endif

// --- reproducible arithmetic (see engine/arithmetic.py) -----------------------------------

template <typename T> __device__ inline T min_of(T a, T b) { return b < a ? b : a; }
template <typename T> __device__ inline T max_of(T a, T b) { return b > a ? b : a; }
template <typename T> __device__ inline T absolute(T a) { return a < 0 ? (T)(0 - (u64)a) : a; }

// Conversions. Values out of range and NaN become the lowest integer, as on CPUs.
template <typename To, typename From> __device__ inline To converted(From x) { return (To)x; }
template <> __device__ inline i64 converted<i64, double>(double x) { return x >= -0x1p63 && x < 0x1p63 ? (i64)x : (i64)(1ULL << 63); }
template <> __device__ inline i64 converted<i64, float>(float x) { return converted<i64, double>((double)x); }
template <> __device__ inline int converted<int, double>(double x) { return x > -0x1.00000002p31 && x < 0x1p31 ? (int)x : (int)(1u << 31); }
template <> __device__ inline int converted<int, float>(float x) { return converted<int, double>((double)x); }

// 64-bit integers, which wrap around; division by 0 gives 0, as in NumPy.
__device__ inline i64 floor_divided_int(i64 a, i64 b)
{
    if (b == 0)
        return 0;
    if (b == -1)
        return (i64)(0 - (u64)a);
    i64 q = a / b;
    return (q * b != a && (a < 0) != (b < 0)) ? q - 1 : q;
}

__device__ inline i64 floor_remainder_int(i64 a, i64 b)
{
    if (b == 0 || b == -1)
        return 0;
    i64 rest = a % b;
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

__device__ inline i64 power_int(i64 a, i64 n)
{
    u64 found = 1, factor = (u64)a;
    for (; n > 0; n >>= 1) {
        if (n & 1)
            found *= factor;
        factor *= factor;
    }
    return (i64)found;
}

__device__ inline i64 shifted_left(i64 a, i64 n) { return n >= 0 && n < 64 ? (i64)((u64)a << n) : 0; }
__device__ inline i64 shifted_right(i64 a, i64 n) { return a >> (n >= 0 && n < 64 ? n : 63); }

// An index of n entries: the first or last one where i is beyond.
__device__ inline i64 index_within(i64 i, i64 n) { return max_of<i64>(0, min_of<i64>(i, n - 1)); }

// Floor division of floats as in NumPy, from the exact remainder.
__device__ inline float exact_remainder(float a, float b) { return fmodf(a, b); }
__device__ inline double exact_remainder(double a, double b) { return fmod(a, b); }
__device__ inline float rounded_down(float x) { return floorf(x); }
__device__ inline double rounded_down(double x) { return floor(x); }
__device__ inline float with_sign(float x, float sign) { return copysignf(x, sign); }
__device__ inline double with_sign(double x, double sign) { return copysign(x, sign); }

template <typename T> __device__ inline T floor_divided(T a, T b)
{
    T rest = exact_remainder(a, b), quotient = (a - rest) / b;
    if (rest != 0 && (b < 0) != (rest < 0))
        quotient -= (T)1;
    T whole = rounded_down(quotient);
    if (quotient - whole > (T)0.5)
        whole += (T)1;
    T zero = with_sign((T)0, a / b), found = quotient != 0 ? whole : zero;
    return b == 0 ? a / b : found;
}

template <typename T> __device__ inline T floor_remainder(T a, T b)
{
    T rest = exact_remainder(a, b);
    if (b == 0)
        return rest;
    if (rest == 0)
        return with_sign((T)0, b);
    return (b < 0) != (rest < 0) ? rest + b : rest;
}

__device__ inline float sqrt_f(float x) { return sqrtf(x); }

__device__ inline float infinity_f() { return bits_to_f(0x7f800000u); }
__device__ inline float nan_f() { return bits_to_f(0x7fc00000u); }

__device__ inline float exp_f(float x)
{
    float clipped = min_of<float>(max_of<float>(-104.0f, x), 89.0f);
    float n = (clipped * bits_to_f(0x3fb8aa3bu) + 12582912.0f) - 12582912.0f;
    float r = (clipped - n * 0.693359375f) - n * E_LN2_LOW;
    float p = ((((E_E0 * r + E_E1) * r + E_E2) * r + E_E3) * r + E_E4) * r + E_E5;
    p = (p * (r * r) + r) + 1.0f;
    int first = (int)n >> 1, second = (int)n - first;
    float low = bits_to_f((u32)((first + 127) << 23)), high = bits_to_f((u32)((second + 127) << 23));
    return x != x ? x : (p * low) * high;
}

__device__ inline float log_of_normal_f(float x, int bias)
{
    u32 bits = f_to_bits(x);
    int exponent = (int)(bits >> 23) - bias;
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

__device__ inline float log_f(float x)
{
    float smallest = bits_to_f(0x00800000u);
    bool denormal = x < smallest;
    float found = log_of_normal_f(max_of<float>(smallest, denormal ? x * 8388608.0f : x), denormal ? 149 : 126);
    found = x == infinity_f() ? x : found;
    found = x == 0.0f ? -infinity_f() : found;
    return x >= 0.0f ? found : nan_f();
}

__device__ inline float expm1_f(float x)
{
    float clipped = min_of<float>(max_of<float>(-30.0f, x), 89.0f);
    float n = (clipped * bits_to_f(0x3fb8aa3bu) + 12582912.0f) - 12582912.0f;
    float r = (clipped - n * 0.693359375f) - n * E_LN2_LOW;
    float p = ((((E_E0 * r + E_E1) * r + E_E2) * r + E_E3) * r + E_E4) * r + E_E5;
    float q = p * (r * r) + r;
    float half = bits_to_f((u32)(((int)n + 126) << 23));
    float found = (half * q + (half - 0.5f)) * 2.0f;
    return x != x || fabsf(x) < E_TINY ? x : found;
}

__device__ inline float exprel_f(float x)
{
    bool small = fabsf(x) < E_TINY;
    float found = expm1_f(x) / (small ? 1.0f : x);
    found = small ? 1.0f : found;
    return x == infinity_f() ? x : found;
}

__device__ inline float log1p_f(float x)
{
    float u = 1.0f + x, lost = x - (u - 1.0f);
    float found = log_f(u) + lost / u;
    found = u == 0.0f || x == infinity_f() ? log_f(u) : found;
    return fabsf(x) < E_TINY ? x : found;
}

__device__ inline float tanh_f(float x)
{
    float size = min_of<float>(10.0f, fabsf(x)), t = expm1_f(size + size);
    float found = copysignf(t / (t + 2.0f), x);
    return x != x || fabsf(x) < E_TINY ? x : found;
}

__device__ inline float turned_f(float x, int quarters)
{
    bool inside = fabsf(x) <= 1073741824.0f;
    double wide = (double)(inside ? x : 0.0f);
    double n = (wide * E_INVERSE_HALF_PI + 6755399441055744.0) - 6755399441055744.0;
    double r = ((wide - n * E_HALF_PI_0) - n * E_HALF_PI_1) - n * E_HALF_PI_2, s = r * r;
    double sine = r + (r * s) * (((((E_S6 * s + E_S5) * s + E_S4) * s + E_S3) * s + E_S2) * s + E_S1);
    double cosine = 1.0 + s * (((((E_C6 * s + E_C5) * s + E_C4) * s + E_C3) * s + E_C2) * s + E_C1);
    int quarter = (int)n + quarters;
    double found = quarter & 1 ? cosine : sine;
    found = quarter & 2 ? -found : found;
    return inside ? (float)found : nan_f();
}

__device__ inline float sin_f(float x) { return fabsf(x) < E_TINY ? x : turned_f(x, 0); }
__device__ inline float cos_f(float x) { return turned_f(x, 1); }

__device__ inline float power_of_positive_f(float x, float y) { return x > 0.0f ? exp_f(y * log_f(x)) : 0.0f; }

__device__ inline float power_f(float x, float y)
{
    float size = fabsf(x), smallest = bits_to_f(0x00800000u);
    bool whole_y = y == floorf(y), odd_y = whole_y && fabsf(y) < 16777216.0f && ((i64)y & 1) == 1;
    bool denormal = size < smallest;
    u32 bits = f_to_bits(denormal ? size * 8388608.0f : size);
    int exponent = (int)(bits >> 23) - (denormal ? 149 : 126);
    double m = (double)bits_to_f((bits & 0x007FFFFFu) | 0x3F000000u);
    bool small = m < 0.7071067811865476;
    double e = small ? (double)(exponent - 1) : (double)exponent;
    m = small ? m + m : m;
    double z = (m - 1.0) / (m + 1.0), s = z * z;
    double p = ((((E_A10 * s + E_A9) * s + E_A8) * s + E_A7) * s + E_A6) * s + E_A5;
    p = ((((p * s + E_A4) * s + E_A3) * s + E_A2) * s + E_A1) * s + E_A0;
    double log2_of_size = e + (p * z) * E_LOG2_E;
    double t = min_of<double>(max_of<double>(-160.0, (double)y * log2_of_size), 130.0);
    double n = (t + 6755399441055744.0) - 6755399441055744.0, u = (t - n) * E_LN2_64;
    double q = (((((E_T13 * u + E_T12) * u + E_T11) * u + E_T10) * u + E_T9) * u + E_T8) * u + E_T7;
    q = ((((((q * u + E_T6) * u + E_T5) * u + E_T4) * u + E_T3) * u + E_T2) * u + E_T1) * u + E_T0;
    int first = (int)n >> 1, second = (int)n - first;
    double low = (double)bits_to_f((u32)((first + 127) << 23)), high = (double)bits_to_f((u32)((second + 127) << 23));
    double found = (q * low) * high;
    if (whole_y && fabsf(y) <= 15.0f) {
        int k = (int)fabsf(y);
        double one = (double)size, two = one * one, four = two * two;
        double product = (k & 1 ? one : 1.0) * (k & 2 ? two : 1.0);
        product = product * (k & 4 ? four : 1.0) * (k & 8 ? four * four : 1.0);
        found = y < 0.0f ? 1.0 / product : product;
    }
    float result = (float)found;
    result = x < 0.0f && odd_y ? -result : result;
    result = x < 0.0f && !whole_y ? nan_f() : result;
    if (size == 0.0f || size == infinity_f()) {
        bool grows = (size == infinity_f()) == (y > 0.0f);
        result = grows ? infinity_f() : 0.0f;
        result = odd_y && f_to_bits(x) >> 31 == 1 ? -result : result;
    }
    if (fabsf(y) == infinity_f()) {
        bool grows = (size > 1.0f) == (y > 0.0f);
        result = size == 1.0f ? 1.0f : (grows ? infinity_f() : 0.0f);
    }
    result = x != x || y != y ? nan_f() : result;
    return x == 1.0f || y == 0.0f ? 1.0f : result;
}

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

__device__ inline float drawn_random_f(int bits) { return (float)(int)((u32)bits >> 8) * 0x1p-24f; }

__device__ inline float drawn_normal_f(int bits)
{
    int v = (bits & 0x7FFFFFFF) | 1;
    float p = (float)v * 0x1p-32f, q = (float)(int)(0x80000000u - (u32)v) * 0x1p-32f;
    float w = -log_of_normal_f((p * 4.0f) * (0.5f + q), 126);
    float above = ((((E_N5 * w + E_N4) * w + E_N3) * w + E_N2) * w + E_N1) * w + E_N0;
    float below = ((((E_D5 * w + E_D4) * w + E_D3) * w + E_D2) * w + E_D1) * w + 1.0f;
    float z = q * (above / below);
    return bits_to_f(f_to_bits(z) | ((u32)bits & 0x80000000u));
}
