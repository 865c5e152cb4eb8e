/* Quantize blocks of rows: the same bits as reference.py, at the speed of memory.
 *
 * A weight is BF16 (is_bf16 = 1) or FP32 (0). The vectors are GCC's and Clang's own, so one file is right for AVX and
 * NEON; they are as wide as the processor's, since wider ones are taken apart badly. Every function returns 0, or 1 when a weight is infinite or NaN. sums[0] gets the squared
 * error, sums[1] the squared norm. Needs IEEE arithmetic: no -ffast-math, no contraction.
 *
 * Rounding to a small format: a number plus 1.5 * 2^23 steps leaves whole steps in the last bits of the sum, rounded
 * to nearest, ties to even. A step follows from the exponent, which is at least that of the smallest normal number.
 */
#include <stdint.h>
#include <string.h>

/* Compilers do not find the instructions for the larger of two, and may not fuse a product and a sum by themselves. */
#if defined(__AVX512F__)
#include <immintrin.h>
#define LANES 16
#define LARGER(a, b) ((vu)_mm512_max_epu32((__m512i)(a), (__m512i)(b)))
#define ADD_PRODUCT(sum, a, b) ((vf)_mm512_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(sum)))
#elif defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
#define LANES 8
#define LARGER(a, b) ((vu)_mm256_max_epu32((__m256i)(a), (__m256i)(b)))
#define ADD_PRODUCT(sum, a, b) ((vf)_mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(sum)))
#else
#define LANES 4
#define LARGER(a, b) SELECT((a) > (b), a, b)
#define ADD_PRODUCT(sum, a, b) ((sum) + (a) * (b))
#endif
#define GROUP 16 /* weights that share a scale in NVFP4; MXFP4 has two of these */
#define INLINE static inline __attribute__((always_inline))
typedef float vf __attribute__((vector_size(4 * LANES)));
typedef uint32_t vu __attribute__((vector_size(4 * LANES)));
typedef uint16_t vh __attribute__((vector_size(2 * LANES)));
typedef uint8_t vb __attribute__((vector_size(LANES)));
#define SELECT(mask, a, b) (((vu)(mask) & (a)) | (~(vu)(mask) & (b)))
#define NOT_FINITE 0x7F800000u

INLINE uint32_t bits_of(float x) { uint32_t u; memcpy(&u, &x, 4); return u; }
INLINE float float_of(uint32_t u) { float x; memcpy(&x, &u, 4); return x; }

INLINE vf load(const void *w, int64_t at, int is_bf16)
{
    vf value;
    if (is_bf16) {
        vh half;
        memcpy(&half, (const uint16_t *)w + at, sizeof half);
        return (vf)(__builtin_convertvector(half, vu) << 16);
    }
    memcpy(&value, (const float *)w + at, sizeof value);
    return value;
}

INLINE vf round_bf16(vf x) { return (vf)(((vu)x + 0x7FFFu + ((vu)x >> 16 & 1u)) & 0xFFFF0000u); }

/* Codes of sizes that are not negative and at most the largest number; *back gets what they stand for. Only the last
 * 8 bits of a code are right: the rest is left of the sum.
 * E4M3: 3 bits of mantissa from 2^-6 on. E2M1: 1 bit from 1 on. */
INLINE vu small_float(vf size, uint32_t least_exponent, int mantissa, vf *back)
{
    vu exponent = LARGER((vu)size & NOT_FINITE, (vu){0} + (least_exponent << 23));
    vf shift = (vf)(exponent + ((uint32_t)(23 - mantissa) << 23 | 0x400000u));
    vf sum = size + shift;
    *back = sum - shift;
    return (vu)sum + (exponent >> (23 - mantissa)) - (least_exponent << mantissa);
}
#define E4M3(size, back) small_float(size, 127 - 6, 3, back)
#define E2M1(size, back) small_float(size, 127, 1, back)

INLINE vf at_most(vf x, float largest) { return (vf)SELECT(x > largest, (vu)((vf){0} + largest), (vu)x); }

/* The largest absolute value, as bits: these order like the numbers, and infinities and NaN come last. */
INLINE uint32_t amax_bits(const void *w, int64_t at, int64_t count, int is_bf16)
{
    if (is_bf16) {
        const uint16_t *p = (const uint16_t *)w + at;
        uint16_t largest = 0;
        for (int64_t i = 0; i < count; i++) {
            uint16_t size = p[i] & 0x7FFFu;
            largest = size > largest ? size : largest;
        }
        return (uint32_t)largest << 16;
    }
    const uint32_t *p = (const uint32_t *)w + at;
    uint32_t largest = 0;
    for (int64_t i = 0; i < count; i++) {
        uint32_t size = p[i] & 0x7FFFFFFFu;
        largest = size > largest ? size : largest;
    }
    return largest;
}

INLINE void add_lanes(double *sums, vf error, vf norm)
{
    for (int k = 0; k < LANES; k++) {
        sums[0] += (double)error[k];
        sums[1] += (double)norm[k];
    }
}

int amax(const void *w, int64_t count, int is_bf16, float *out)
{
    uint32_t bits = is_bf16 ? amax_bits(w, 0, count, 1) : amax_bits(w, 0, count, 0);
    *out = float_of(bits);
    return bits >= NOT_FINITE;
}

/* --- FP8 --- */

INLINE float fp8_scale(uint32_t largest, void *scales, int64_t at, int is_bf16)
{
    vf scale = (vf){0} + float_of(largest) / 448.0f;
    float one = is_bf16 ? round_bf16(scale)[0] : scale[0];
    one = one == 0 ? (is_bf16 ? 0x1p-7f : 0x1p-23f) : one;
    if (is_bf16)
        ((uint16_t *)scales)[at] = (uint16_t)(bits_of(one) >> 16);
    else
        ((float *)scales)[at] = one;
    return one;
}

/* With inverse = 1 / scale where that gives the same, else 0. A quotient of two BF16 numbers (8 bits each) is at least
 * 2^-17 of its size away from the middle of two BF16 numbers: t * s has 17 bits, so x - t * s is never smaller. Times
 * the inverse it is off by 2^-23 at most, and rounds to the same BF16. The largest is 450, since a BF16 scale is off by
 * 2^-8 at most, and 450 becomes 448. */
INLINE vb fp8_lanes(vf value, float scale, float inverse, vf *error, vf *norm, int is_bf16)
{
    vf scaled = inverse != 0 ? value * inverse : value / scale, back;
    if (is_bf16)
        scaled = round_bf16(scaled);
    vf size = (vf)((vu)scaled & 0x7FFFFFFFu);
    vu code = E4M3(inverse != 0 ? size : at_most(size, 448.0f), &back) | ((vu)value >> 24 & 0x80u);
    vf off = back * scale - (vf)((vu)value & 0x7FFFFFFFu);
    *error = ADD_PRODUCT(*error, off, off);
    *norm = ADD_PRODUCT(*norm, value, value);
    return __builtin_convertvector(code, vb);
}

/* One scale for `count` weights from `at` on. */
INLINE void fp8_scaled(const void *w, int64_t at, int64_t count, float scale, float inverse, uint8_t *codes,
                       double *sums, int is_bf16)
{
    vf error = {0}, norm = {0};
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        vb code = fp8_lanes(load(w, at + i, is_bf16), scale, inverse, &error, &norm, is_bf16);
        memcpy(codes + at + i, &code, sizeof code);
    }
    if (i < count) {
        float rest[LANES] = {0};
        for (int64_t k = 0; i + k < count; k++)
            rest[k] = is_bf16 ? float_of((uint32_t)((const uint16_t *)w)[at + i + k] << 16)
                              : ((const float *)w)[at + i + k];
        vb code = fp8_lanes(load(rest, 0, 0), scale, inverse, &error, &norm, is_bf16);
        memcpy(codes + at + i, &code, (size_t)(count - i));
    }
    add_lanes(sums, error, norm);
}

INLINE void fp8_run(const void *w, int64_t at, int64_t count, float scale, uint8_t *codes, double *sums, int is_bf16)
{
    if (is_bf16 && scale > 0x1p-100f) /* below, the inverse may be infinite */
        fp8_scaled(w, at, count, scale, 1.0f / scale, codes, sums, is_bf16);
    else
        fp8_scaled(w, at, count, scale, 0, codes, sums, is_bf16);
}

INLINE int fp8_rows_of(const void *w, int64_t rows, int64_t columns, uint8_t *codes, void *scales, double *sums,
                       int is_bf16)
{
    for (int64_t r = 0; r < rows; r++) {
        uint32_t largest = amax_bits(w, r * columns, columns, is_bf16);
        if (largest >= NOT_FINITE)
            return 1;
        float scale = fp8_scale(largest, scales, r, is_bf16);
        fp8_run(w, r * columns, columns, scale, codes, sums, is_bf16);
    }
    return 0;
}

int fp8_rows(const void *w, int64_t rows, int64_t columns, int is_bf16, uint8_t *codes, void *scales, double *sums)
{
    return is_bf16 ? fp8_rows_of(w, rows, columns, codes, scales, sums, 1)
                   : fp8_rows_of(w, rows, columns, codes, scales, sums, 0);
}

INLINE int fp8_block_of(const void *w, int64_t rows, int64_t columns, uint8_t *codes, void *scales, double *sums,
                        int is_bf16)
{
    int64_t wide = (columns + 127) / 128;
    for (int64_t top = 0; top < rows; top += 128) {
        int64_t bottom = top + 128 < rows ? top + 128 : rows;
        for (int64_t b = 0; b < wide; b++) {
            int64_t left = b * 128, width = left + 128 < columns ? 128 : columns - left;
            uint32_t largest = 0;
            for (int64_t r = top; r < bottom; r++) {
                uint32_t own = amax_bits(w, r * columns + left, width, is_bf16);
                largest = own > largest ? own : largest;
            }
            if (largest >= NOT_FINITE)
                return 1;
            float scale = fp8_scale(largest, scales, top / 128 * wide + b, is_bf16);
            for (int64_t r = top; r < bottom; r++)
                fp8_run(w, r * columns + left, width, scale, codes, sums, is_bf16);
        }
    }
    return 0;
}

int fp8_block(const void *w, int64_t rows, int64_t columns, int is_bf16, uint8_t *codes, void *scales, double *sums)
{
    return is_bf16 ? fp8_block_of(w, rows, columns, codes, scales, sums, 1)
                   : fp8_block_of(w, rows, columns, codes, scales, sums, 0);
}

/* --- FP4 --- */

/* 16 weights in steps of `step` -> 8 bytes; the even column is the low nibble. */
INLINE void fp4_group(const void *w, int64_t at, float step, uint8_t *packed, vf *error, vf *norm, int is_bf16,
                      int rounds)
{
    uint8_t nibbles[GROUP];
    for (int k = 0; k < GROUP; k += LANES) {
        vf value = load(w, at + k, is_bf16), scaled = value / step, back;
        if (rounds)
            scaled = round_bf16(scaled);
        vu sign = (vu)(scaled < 0) & 0x80000000u;
        vu code = E2M1(at_most((vf)((vu)scaled & 0x7FFFFFFFu), 6.0f), &back) | sign >> 28;
        vf off = (vf)((vu)back | sign) * step - value;
        *error = ADD_PRODUCT(*error, off, off);
        *norm = ADD_PRODUCT(*norm, value, value);
        vb byte = __builtin_convertvector(code, vb);
        memcpy(nibbles + k, &byte, sizeof byte);
    }
    for (int half = 0; half < 2; half++) { /* 8 nibbles in 8 bytes -> in 4 bytes */
        uint64_t x;
        memcpy(&x, nibbles + 8 * half, 8);
        x = (x | x >> 4) & 0x00FF00FF00FF00FFu;
        x = (x | x >> 8) & 0x0000FFFF0000FFFFu;
        uint32_t four = (uint32_t)(x | x >> 16);
        memcpy(packed + at / 2 + 4 * half, &four, 4);
    }
}

/* As many groups at a time as their scales fill a vector. */
INLINE int nvfp4_of(const void *w, int64_t rows, int64_t columns, float divisor, uint8_t *packed, uint8_t *scales,
                    double *sums, int is_bf16)
{
    int64_t groups = rows * (columns / GROUP);
    vf error = {0}, norm = {0};
    for (int64_t first = 0; first < groups; first += LANES) {
        int count = groups - first < LANES ? (int)(groups - first) : LANES;
        vu largest = {0};
        for (int g = 0; g < count; g++)
            largest[g] = amax_bits(w, (first + g) * GROUP, GROUP, is_bf16);
        vf scale = (vf)largest / 6.0f, rounded;
        if (is_bf16)
            scale = round_bf16(scale);
        vu code = E4M3(at_most(scale * divisor, 448.0f), &rounded);
        vu zero = (vu)(rounded == 0);
        code = SELECT(zero, (vu){0} + 0x20u, code); /* 0.125 */
        rounded = (vf)SELECT(zero, (vu)((vf){0} + 0.125f), (vu)rounded);
        vf step = rounded / divisor;
        for (int g = 0; g < count; g++) {
            if (largest[g] >= NOT_FINITE)
                return 1;
            scales[first + g] = (uint8_t)code[g];
            fp4_group(w, (first + g) * GROUP, step[g], packed, &error, &norm, is_bf16, 0);
        }
        if ((first & 0xFFF) == 0) { /* before single precision loses small errors in a large sum */
            add_lanes(sums, error, norm);
            error = norm = (vf){0};
        }
    }
    add_lanes(sums, error, norm);
    return 0;
}

int nvfp4(const void *w, int64_t rows, int64_t columns, int is_bf16, float divisor, uint8_t *packed, uint8_t *scales,
          double *sums)
{
    return is_bf16 ? nvfp4_of(w, rows, columns, divisor, packed, scales, sums, 1)
                   : nvfp4_of(w, rows, columns, divisor, packed, scales, sums, 0);
}

INLINE int mxfp4_of(const void *w, int64_t rows, int64_t columns, uint8_t *packed, uint8_t *scales, double *sums,
                    int is_bf16)
{
    for (int64_t r = 0; r < rows; r++) {
        vf error = {0}, norm = {0};
        for (int64_t at = r * columns; at < (r + 1) * columns; at += 2 * GROUP) {
            uint32_t largest = amax_bits(w, at, 2 * GROUP, is_bf16);
            if (largest >= NOT_FINITE)
                return 1;
            /* From 1.75 on the next power of two is nearer; then less 2, since E2M1 reaches to 4 and 6. */
            int32_t exponent = (int32_t)((largest + (1u << 21)) >> 23) - 2;
            exponent = exponent < 0 ? 0 : exponent;
            scales[at / (2 * GROUP)] = (uint8_t)exponent;
            float step = exponent ? float_of((uint32_t)exponent << 23) : 0x1p-127f;
            fp4_group(w, at, step, packed, &error, &norm, is_bf16, is_bf16);
            fp4_group(w, at + GROUP, step, packed, &error, &norm, is_bf16, is_bf16);
        }
        add_lanes(sums, error, norm);
    }
    return 0;
}

int mxfp4(const void *w, int64_t rows, int64_t columns, int is_bf16, uint8_t *packed, uint8_t *scales, double *sums)
{
    return is_bf16 ? mxfp4_of(w, rows, columns, packed, scales, sums, 1)
                   : mxfp4_of(w, rows, columns, packed, scales, sums, 0);
}
