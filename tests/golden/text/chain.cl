#ifndef TILE_PARTS
#define TILE_PARTS 1
#endif
#ifdef SMALL_GROUPS
#define LANES(all, some) some
#define EACH_LANE(n) for (long lane = 0; lane < n; ++lane)
#else
#define LANES(all, some) all
#define EACH_LANE(n) const long lane = get_local_id(0);
#endif
#pragma OPENCL FP_CONTRACT OFF

typedef float __attribute__((may_alias)) smelt_float_aliased;
static inline long smelt_index_max(long a, long b) { return a > b ? a : b; }
static inline long smelt_index_min(long a, long b) { return a < b ? a : b; }

#if !defined(ONE) && !defined(ALONE) || defined(ONE_k_chain)
__attribute__((noinline))
static void s_k_chain_0(__global const smelt_float_aliased *p_x, __global smelt_float_aliased *p_a, const long n_on__0, const long n_n__9) {
  EACH_LANE(48) {
  if (1L <= n_on__0) {
    if (0L < n_n__9) for (long i_i = 0; i_i < n_n__9; ++i_i) {
      (p_a + lane)[(i_i * 48L)] = ((p_x + lane)[(i_i * 48L)] * 2.0f);
    }
  }
  }
}

__attribute__((noinline))
static void s_k_chain_1(__global smelt_float_aliased *p_a, __global smelt_float_aliased *p_b, const long n_on__1, const long n_n__10) {
  EACH_LANE(48) {
  if (1L <= n_on__1) {
    if (0L < n_n__10) for (long i_i_1 = 0; i_i_1 < n_n__10; ++i_i_1) {
      (p_b + lane)[(i_i_1 * 48L)] = (p_a[(- i_i_1 * 48L - lane + n_n__10 * 48L - 1L)] + 1.0f);
    }
  }
  }
}

__attribute__((noinline))
static void s_k_chain_2(__global smelt_float_aliased *p_b, __global smelt_float_aliased *p_y, const long n_on__2, const long n_n__11) {
  EACH_LANE(48) {
  if (1L <= n_on__2) {
    if (0L < n_n__11) for (long i_at = 0; i_at < ((n_n__11 + 1L) / 2L); ++i_at) {
      const long t = smelt_index_max(((n_n__11 + 1L) / 2L), 1L);
      const long t_1 = n_n__11 / t;
      const long t_2 = n_n__11 % t;
      const long t_3 = i_at < t_2;
      const long t_4 = t_1 + 1L;
      const long t_5 = t_1 * i_at;
      const long t_6 = smelt_index_min(t_2, i_at);
      const long t_7 = t_5 + t_6;
      const long t_8 = (t_3 ? t_4 : t_1) == 2L;
      if (t_8) {
        #pragma unroll
        for (long i_c = 0; i_c < 2L; ++i_c) {
          (p_y + (i_c * 48L + lane))[(t_7 * 48L)] = (p_b + (i_c * 48L + ((lane + 5L) % 48L)))[(t_7 * 48L)];
        }
      }
      else {
        for (long i_c_1 = 0; i_c_1 < (t_3 ? t_4 : t_1); ++i_c_1) {
          (p_y + (t_7 * 48L + lane))[(i_c_1 * 48L)] = (p_b + (t_7 * 48L + ((lane + 5L) % 48L)))[(i_c_1 * 48L)];
        }
      }
    }
  }
  }
}

typedef struct { long v[18]; } words_k_chain;
/* chain */
__kernel __attribute__((reqd_work_group_size(LANES(48, 1), 1, 1)))
void k_chain(
    __global uchar *b0, __global uchar *b1, __global uchar *b2, __global uchar *b3, __global uchar *b4, __global uchar *b5, const words_k_chain w) {
  __global const smelt_float_aliased *p_x = (__global const smelt_float_aliased *)(b0 + w.v[9]);
  __global smelt_float_aliased *p_a = (__global smelt_float_aliased *)(b1 + w.v[10]);
  __global smelt_float_aliased *p_b = (__global smelt_float_aliased *)(b3 + w.v[12]);
  __global smelt_float_aliased *p_y = (__global smelt_float_aliased *)(b5 + w.v[14]);
  const long n_on__0 = w.v[6];
  const long n_on__1 = w.v[7];
  const long n_on__2 = w.v[8];
  const long n_at__0 = w.v[9];
  const long n_at__1 = w.v[10];
  const long n_at__2 = w.v[11];
  const long n_at__3 = w.v[12];
  const long n_at__4 = w.v[13];
  const long n_at__5 = w.v[14];
  const long n_n__9 = w.v[15];
  const long n_n__10 = w.v[16];
  const long n_n__11 = w.v[17];
  const long lane = get_local_id(0);
  s_k_chain_0(p_x, p_a, n_on__0, n_n__9);
  barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
  s_k_chain_1(p_a, p_b, n_on__1, n_n__10);
  barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
  s_k_chain_2(p_b, p_y, n_on__2, n_n__11);
}
#endif
