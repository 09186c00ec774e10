# numerics.dtype: bf16, over layouts and through checkpoints.
string(REPLACE ";" " " bf16_mpirun "${ETALON_MPIRUN}")
set(bf16_dir ${CMAKE_SOURCE_DIR}/tests/parity)
etalon_test(NAME parity_bf16 KIND parity RANKS 2 TIMEOUT 180
  COMMAND ${bf16_dir}/parity.sh $<TARGET_FILE:etalon> "${bf16_mpirun}" ${bf16_dir}/bf16.table ${CMAKE_BINARY_DIR}/parity/bf16)
etalon_test(NAME bf16_checkpoints KIND parity RANKS 2 TIMEOUT 180
  COMMAND ${bf16_dir}/bf16.sh $<TARGET_FILE:etalon> "${bf16_mpirun}" ${CMAKE_BINARY_DIR}/parity/bf16_checkpoints)
etalon_test(NAME bf16_curve KIND full RANKS 4 TIMEOUT 1200
  COMMAND ${bf16_dir}/bf16_curve.sh $<TARGET_FILE:etalon> "${bf16_mpirun}" ${CMAKE_BINARY_DIR}/parity/bf16_curve)
