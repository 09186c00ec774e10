etalon_test(NAME gemm KIND unit LIBS base kernels)
etalon_test(NAME linear KIND unit LIBS base kernels)
etalon_test(NAME linear_dw KIND unit LIBS base kernels)
etalon_test(NAME gemm_bench KIND bench LIBS base kernels)
