etalon_test(NAME gemm_peak KIND bench LIBS kernels base)
etalon_test(NAME random_tokens KIND bench LIBS base)
