# The oracle's files in BF16, within limits that only a mistake exceeds (train/check.h).
if(TARGET etalon)
  etalon_test(NAME check_bf16_mixtral KIND golden RANKS 2 TIMEOUT 60
    COMMAND ${ETALON_MPIRUN} -n 2 $<TARGET_FILE:etalon> check ${CMAKE_SOURCE_DIR}/tests/golden/mixtral.h5 --set numerics.dtype=bf16 --set layout.ep=2)
  etalon_test(NAME check_bf16_llama KIND golden RANKS 2 TIMEOUT 60
    COMMAND ${ETALON_MPIRUN} -n 2 $<TARGET_FILE:etalon> check ${CMAKE_SOURCE_DIR}/tests/golden/llama-dense.h5 --set numerics.dtype=bf16
            --set numerics.shards=2 --set layout.tp=2)
endif()
