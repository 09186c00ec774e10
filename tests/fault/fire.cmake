# Death, damage, hangs and NaN at every point: fire_*.sh run `etalon train` itself.
string(REPLACE ";" " " fire_mpirun "${ETALON_MPIRUN}")
foreach(name kill run)
  etalon_test(NAME fire_${name} KIND fault TIMEOUT 180 COMMAND ${CMAKE_SOURCE_DIR}/tests/fault/fire_${name}.sh $<TARGET_FILE:etalon> "${fire_mpirun}"
    ${CMAKE_BINARY_DIR}/fire/${name})
endforeach()
etalon_test(NAME fire_ckpt KIND fault RANKS 3 LIBS ckpt TIMEOUT 60)
etalon_test(NAME fire_nan KIND fault RANKS 2 LIBS train TIMEOUT 60)
