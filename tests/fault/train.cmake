# What goes wrong for a user, case by case. Most of it is waiting for mpirun to end: no processors are reserved.
string(REPLACE ";" " " fault_mpirun "${ETALON_MPIRUN}")
etalon_test(NAME fault_train KIND fault TIMEOUT 300
  COMMAND ${CMAKE_SOURCE_DIR}/tests/fault/train.sh $<TARGET_FILE:etalon> "${fault_mpirun}" ${CMAKE_BINARY_DIR}/fault/train)
etalon_test(NAME fault_twin KIND fault RANKS 2 TIMEOUT 120
  COMMAND ${CMAKE_SOURCE_DIR}/tests/fault/twin.sh $<TARGET_FILE:etalon> "${fault_mpirun}" ${CMAKE_BINARY_DIR}/fault/twin ${CMAKE_SOURCE_DIR}/data)
