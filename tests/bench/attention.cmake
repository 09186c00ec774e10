etalon_test(NAME attention_bench KIND bench LIBS kernels base)
target_compile_options(test_attention_bench PRIVATE -march=${ETALON_ARCH} -ffp-contract=fast)   # the peak loop alone computes here
